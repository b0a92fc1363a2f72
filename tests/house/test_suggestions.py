"""Is there a command or a flag in the code's words that the command line does not take?

Three nets. Here: every string of the source, and every code block of the documentation.
``conftest.py``: whatever ``suggestions`` builds in any test. ``tests/cli/command_line.py``: what
errors and pages said in any test, against the verb that said it.
"""

import ast
import re
import shlex
from pathlib import Path

import click
import pytest

import pages
import suggested
from inferometer.cli.main import VERBS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "inferometer"
COMMAND = re.compile(
    rf"inferometer ({'|'.join(VERBS)}) ((?:(?:--[a-z-]+|[A-Z]{{2,}}|\S*[/{{…']\S*) ?)+)"
)
"""A verb with words of its own; ``inferometer fit`` alone is the name of a verb."""
TRY = {"try_", "remedy"}
FOREIGN = {
    "cli/foreign_flags.py": "flags of other tools, and ours of the same meaning",
    "inputs/serve_command.py": "flags of servers' start commands",
    "inputs/synonyms.py": "flags of other tools, and ours of the same meaning",
    "api/import_results.py": "vLLM bench",
    "measure/executors/ray_cluster.py": "ray start",
    "decide/diagnosis/": "flags of vLLM and SGLang",
    "api/diagnose_steps.py": "flags of vLLM and SGLang",
    "records/step_logs.py": "flags of vLLM",
    "measure/forward_passes.py": "flags of SGLang",
    "decide/tuning/": "flags of vLLM and SGLang",
    "api/tune_preset.py": "flags of vLLM and SGLang",
    "decide/artefacts/": "flags of vLLM, Kubernetes and HAProxy",
    "fit/loads/reported.py": "flags in a server's log",
    "api/verify_sealing.py": "git",
    "measure/environments.py": "pip",
    "measure/engines/": "flags of engines",
    "measure/scrape.py": "flags of the servers that are scraped",
    "records/pitfalls.py": "flags of vLLM and SGLang, numactl",
    "records/device_trace.py": "nsys export",
}
"""Files whose strings name other programs' flags too."""


def strings(tree: ast.AST) -> list[tuple[int, str]]:
    """The strings of a module that a user may see; the parts of an f-string are put together, its values as braces."""
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.append(
                (
                    node.lineno,
                    "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "{}"
                        for part in node.values
                    ),
                )
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings | parts
        ):
            found.append((node.lineno, node.value))
    return found


def words_of_help(tree: ast.AST) -> set[int]:
    """The lines of ``help``, ``epilog`` and the like, which are checked with the verb they belong to."""
    named = [
        value for node in ast.walk(tree) if isinstance(node, ast.Call) for value in _helps(node)
    ]
    return {
        line
        for value in named
        for line in range(value.lineno, (value.end_lineno or value.lineno) + 1)
    }


def _helps(call: ast.Call) -> list[ast.expr]:
    return [
        keyword.value
        for keyword in call.keywords
        if keyword.arg in {"help", "epilog", "short_help"}
    ]


TREES = {
    path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text())
    for path in sorted(SOURCE.rglob("*.py"))
}


def test_commands_with_values_are_built_from_words():
    """A value inside a string is not quoted: ``suggestions.command`` is for that.

    A flag that is named beside a verb is one of the verb.
    """
    offenders = [
        f"{name}:{line}: {text[:100]!r}"
        for name, tree in TREES.items()
        for helps in [words_of_help(tree)]
        for line, text in strings(tree)
        if line not in helps and not text.startswith("<!--")
        for verb, words in COMMAND.findall(text)
        if "{}" in words or not set(suggested.FLAG.findall(words)) <= suggested.flags_of(verb)
    ]
    assert not offenders, "\n".join(offenders)


def test_flags_with_values_are_built_from_words():
    """A remedy with ``--flag {value}`` inside a string is neither quoted nor parsed: ``suggestions.flags`` is for that."""
    offenders = []
    for name, tree in TREES.items():
        named = [
            keyword.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            for keyword in node.keywords
            if keyword.arg in TRY
        ]
        texts = [text for value in named for _, text in strings(value)]
        offenders += [
            f"{name}: {text[:100]!r}" for text in texts if re.search(r"--[a-z-]+[ =]\S*\{\}", text)
        ]
    assert not offenders, "\n".join(offenders)


def test_calls_of_suggestions_name_verbs_and_flags_that_are_there():
    """Also those that no test makes: what of a call is written out is checked here."""
    checked, offenders = 0, []
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) not in {
                "suggestions.command",
                "suggestions.flags",
            }:
                continue
            checked += 1
            words = [
                word.value
                for word in node.args
                if isinstance(word, ast.Constant) and isinstance(word.value, str)
            ]
            is_command = ast.unparse(node.func) == "suggestions.command"
            known = (
                suggested.flags_of(words[0])
                if is_command and words and words[0] in VERBS
                else suggested.all_flags()
            )
            offenders += [
                f"{name}:{node.lineno}: {word}"
                for word in words
                if word.startswith("--") and word not in known
            ]
            if (
                is_command
                and isinstance(node.args[0], ast.Constant)
                and node.args[0].value not in VERBS
            ):
                offenders.append(f"{name}:{node.lineno}: no verb {node.args[0].value!r}")
    assert checked > 20
    assert not offenders, "\n".join(offenders)


def test_every_flag_in_a_string_is_one_of_ours():
    known = suggested.all_flags() | suggested.OF_OTHERS
    offenders = [
        f"{name}:{line}: {flag} in {text[:80]!r}"
        for name, tree in TREES.items()
        if not name.startswith(tuple(FOREIGN))
        for line, text in strings(tree)
        for flag in suggested.FLAG.findall(text)
        if flag not in known
    ]
    assert not offenders, "\n".join(offenders)


@pytest.mark.parametrize("verb", VERBS)
def test_help_names_flags_that_are_there(verb):
    for command in suggested.commands_of(verb):
        helps = [
            command.help or "",
            *(one.help or "" for one in command.params if isinstance(one, click.Option)),
        ]
        suggested.check_said(verb, "\n".join(helps))
        for line in (command.epilog or "").splitlines():
            if line.strip().startswith("inferometer "):
                suggested.check_words(tuple(shlex.split(line.strip())))


def documented() -> list[tuple[str, str]]:
    """The commands in the code blocks of the documentation."""
    return [(page.name, line) for page in pages.PAGES for line in pages.commands(page)]


def test_there_are_documented_commands():
    assert len(documented()) > 20


@pytest.mark.parametrize(("page", "line"), documented())
def test_documented_commands_parse(page, line):
    words = shlex.split(line, comments=True)
    stop = next(
        (
            index
            for index, word in enumerate(words)
            if word in {"|", ">", "||", "2>", "&", "&&", ";"}
        ),
        len(words),
    )
    suggested.check_words(tuple(word for word in words[:stop] if word != "…"))
