"""A gate must not be a lottery: in CI Hypothesis draws the same examples each time; at a desk it looks for new ones."""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")
