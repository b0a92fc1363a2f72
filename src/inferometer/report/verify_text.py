"""How do sealed predictions and their measurement look in a terminal: the answer first?

Nothing here prints.
"""

from rich.console import Group, RenderableType
from rich.text import Text

from inferometer.report.request_terminal import table_text
from inferometer.report.verify_tables import claims_table, promises_table
from inferometer.report.verify_views import VerifyView


def verify_text(view: VerifyView) -> RenderableType:
    """The answer, every claim, what they rest on, what to do next."""
    tables = [table for table in (claims_table(view), promises_table(view)) if table is not None]
    lines = (
        ("TRUST", view.trust),
        ("SEAL", view.seal),
        ("RUNS", view.measured),
        ("NEXT", view.next),
    )
    return Group(
        Text(f"ANSWER {view.answer}", style="bold"),
        Text(f"WHY    {view.why}"),
        Text(),
        *(table_text(table) for table in tables),
        *(Text(f"{name:<6} {text}") for name, text in lines if text),
    )
