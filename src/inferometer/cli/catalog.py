"""inferometer catalog: which models, devices, SLOs and workloads are known, from which sources?"""

import click

from inferometer.api.catalog import Catalog, CatalogAnswer, catalog
from inferometer.cli.answer import give_answer
from inferometer.cli.flags import QuestionCommand, asks

ANSWER = CatalogAnswer


@click.command(
    "catalog",
    cls=QuestionCommand,
    epilog="""\b
Examples:
  inferometer catalog models
  inferometer catalog models qwen2.5-3b
  inferometer catalog hardware h100_sxm
  inferometer catalog slos
  inferometer catalog workloads
  inferometer catalog workloads chat
""",
)
@asks(Catalog)
def command(question: Catalog, *, as_json: bool) -> None:
    """Which models, devices, SLOs and workloads are known, and from which sources?"""
    give_answer(catalog, question, as_json=as_json, is_whole=True)
