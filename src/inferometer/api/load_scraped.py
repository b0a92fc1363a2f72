"""How is a server loaded and watched at once?"""

from contextlib import ExitStack

from inferometer.api.progress import talk
from inferometer.errors import MeasureError
from inferometer.measure.load import load_test, watch
from inferometer.measure.metrics_page import MetricsSource
from inferometer.measure.scrape import Scraper, scraping
from inferometer.records.load_types import ServerSampleTable


def sent_and_scraped(
    question: load_test.LoadQuestion, source: MetricsSource
) -> tuple[watch.LoadOutcome, ServerSampleTable | None]:
    """Send while the server's own numbers are scraped, where it shows any.

    Raises
    ------
    MeasureError
        The server is not there, or shows no numbers where it was said to.
    """
    with ExitStack() as stack:
        scraper = _scraper(question, source, stack)
        outcome = load_test.run_session(question, talk)
    if scraper is None:
        return outcome, None
    table = scraper.table()
    return outcome, table._replace(scraped_ns=table.scraped_ns - outcome.origin_monotonic_ns)


def _scraper(
    question: load_test.LoadQuestion, source: MetricsSource, stack: ExitStack
) -> Scraper | None:
    """Started, until the stack ends.

    Its clock begins at 0: when the run does is known afterwards.
    """
    try:
        return stack.enter_context(scraping(source, started_ns=0))
    except MeasureError as error:
        if question.load.metrics_url is not None:
            raise
        talk(f"without the server's own numbers: {error.what}")
        return None
