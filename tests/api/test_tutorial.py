"""Does every example of the page on Python run, in the order of the page?"""

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    globs = {}
    exec("import inferometer as im", globs)  # noqa: S102 -- the page's first line
    examples = doctest.DocTestParser().get_doctest(PAGE.read_text(), globs, "python.md", None, 0)
    assert len(examples.examples) > 12
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    said = []
    runner.run(examples, out=said.append)
    assert not runner.summarize(verbose=False).failed, "".join(said)
