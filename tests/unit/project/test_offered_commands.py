"""Every command that the documents and the program's hints offer can be pasted: the program's own parser takes it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream.flags import parse
from support.doc_pages import blocks, pages
from support.offered_commands import commands_in_block, commands_in_prose
from support.paths import REPOSITORY

MESSAGES = REPOSITORY / "docs/reference/messages.md"
PAGES = {str(page.relative_to(REPOSITORY)): page for page in pages()}


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return why the program refuses a command line; empty where it takes it."""
    try:
        parse(words)
    except SystemExit as error:
        if error.code:
            return f"midstream {' '.join(words)}: {capsys.readouterr().err.strip()}"
    return ""


@pytest.mark.parametrize("name", PAGES)
def test_commands_of_pages_are_taken(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = PAGES[name]
    text = page.read_text()
    commands = [words for block in blocks(page) if block.language == "sh" for words in commands_in_block(block.text)]
    commands += [words for code in re.findall(r"`(midstream [^`\n]+)`", text) for words in commands_in_block(code)]
    assert [why for words in commands if (why := refused(words, capsys))] == []


def test_commands_of_hints_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [re.split(r"(?<!\\)\|", line) for line in MESSAGES.read_text().splitlines() if line.startswith("| ")]
    hints = [row[2].replace("\\|", "|") for row in rows]
    commands = [words for hint in hints for words in commands_in_prose(hint)]
    assert len(commands) > 70
    assert all(commands)
    assert [why for words in commands if (why := refused(words, capsys))] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("midstream --status shows it", ["--status"]),
        ("see midstream --migrate RUN_ID --to NAME migrates it", ["--migrate", "RUN_ID", "--to", "NAME"]),
        ("midstream --launch run.yaml --on lab-1, or wait", ["--launch", "run.yaml", "--on", "lab-1"]),
        ("midstream --clean removes them", ["--clean"]),
        ("midstream --clean RUN --yes removes them", ["--clean", "RUN", "--yes"]),
        ("midstream --diff A B --json", ["--diff", "A", "B", "--json"]),
        ("midstream --verify shows them", ["--verify"]),
        ("midstream --continue NAME --mode warm ends the wait", ["--continue", "NAME", "--mode", "warm"]),
        ("midstream --stop webtext", ["--stop", "webtext"]),
        ("midstream --launch ... --on NAME", ["--launch"]),
    ],
)
def test_command_ends_where_the_sentence_goes_on(text: str, words: list[str]) -> None:
    assert list(commands_in_prose(text)) == [words]


def _texts(path: Path) -> Iterator[str]:
    """Yield the strings of a module, with a word in capitals for what they name."""
    tree = ast.parse(path.read_bytes())
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "NAME" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value


@pytest.mark.long
def test_commands_in_strings_of_the_program_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    """Not all that is printed is an error with a hint."""
    found = [
        f"{path.relative_to(REPOSITORY)}: {why}"
        for path in sorted((REPOSITORY / "app").rglob("*.py"))
        if path.name != "flags.py"  # its examples are on the page of the command line
        for text in _texts(path)
        for words in commands_in_prose(text)
        if (why := refused(words, capsys))
    ]
    assert found == []
