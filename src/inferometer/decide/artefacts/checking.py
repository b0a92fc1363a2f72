"""Which command shows whether the fleet keeps the promise?"""

import math
import shlex
from typing import Final

from inferometer.decide.artefacts.fleet import Fleet
from inferometer.decide.artefacts.packaging import Packaging

WORKLOAD_FILE: Final = "workload.json"
_N_REQUESTS: Final = 2000
"""Enough for an interval of a 99th percentile of requests that hardly depend on one another."""
_LEAST_S: Final = 120


def check_script(fleet: Fleet, packaging: Packaging) -> str:
    """A shell script: the same traffic against the real thing, judged by the same promise."""
    words = [
        "inferometer",
        "load",
        '"$url"',
        "--model",
        shlex.quote(packaging.served_name),
        "--workload",
        f'"$here/{WORKLOAD_FILE}"',
    ]
    words += [
        "--rate",
        f"{fleet.rate_per_s:g}",
        "--for",
        f"{duration_s(fleet)}s",
        "--slo",
        shlex.quote(fleet.objective.text),
        '"$@"',
    ]
    return "\n".join(
        [
            "#!/bin/sh",
            (
                "# Is the promise kept? check-promise.sh URL [flags of inferometer load]; exit 0"
                " kept, 10 broken, 11 undecided."
            ),
            "set -eu",
            'here=$(cd "$(dirname "$0")" && pwd)',
            'url=${1:?"the address of the router, such as http://127.0.0.1:8080"}',
            "shift",
            f"exec {' '.join(words)}",
            "",
        ]
    )


def duration_s(fleet: Fleet) -> int:
    """So long a test takes, in whole seconds."""
    return max(_LEAST_S, math.ceil(_N_REQUESTS / fleet.rate_per_s))
