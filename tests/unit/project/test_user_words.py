"""Words of texts that users see: an epoch is a pass over the data, never the number of an ownership."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.paths import REPOSITORY

# Words that only the source code and the files on disk use, with what users read.
INTERNAL = {"epoch": "ownership and its number", "quiesce": "last step", "superseded": "a later start has replaced it"}
WORD = re.compile(r"\b(epochs?|quiesce|superseded)\b", re.IGNORECASE)
# Modules whose texts mean a pass over the data.
PASSES_OVER_THE_DATA = {
    "app/midstream/migrate/proof/global_batch_claim.py",
    "app/midstream/trainers/library_behaviour.py",
    "app/midstream/trainers/lightning.py",
    "engine/midstream_engine/attempt/beginning.py",
    "engine/midstream_host/driver/checkpoints/huggingface.py",
    "engine/midstream_host/driver/checkpoints/lightning.py",
    "engine/midstream_host/driver/checkpoints/step_names.py",
}
PAGES_ON_DATA = {
    "configuration.md",
    "data.md",
    "data-caches.md",
    "trainer-examples.md",
    "trainers.md",
    "trainer-checkpoints.md",
    "levanter.md",
    "glossary.md",
}


def texts(source: str) -> Iterator[str]:
    """Yield the strings of a module that are no docstrings, names of fields or notes on a field of JSON lines."""
    tree = ast.parse(source)
    documentation = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if id(node) not in documentation and isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub("`[^`]*`", "", node.value) if " " in node.value else ""


def modules() -> Iterator[Path]:
    for folder in ("app", "engine"):
        yield from sorted((REPOSITORY / folder).rglob("*.py"))


def test_texts_for_people_have_no_word_of_the_code_alone() -> None:
    wrong = [
        f"{path.relative_to(REPOSITORY)}: {text!r}: say {INTERNAL.get(word[1].lower().rstrip('s'), INTERNAL['epoch'])}"
        for path in modules()
        if str(path.relative_to(REPOSITORY)) not in PASSES_OVER_THE_DATA and WORD.search(source := path.read_text())
        for text in texts(source)
        if (word := WORD.search(text))
    ]
    assert not wrong, "\n".join(wrong)


def test_pages_call_an_ownership_by_its_word() -> None:
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{number}: {line}"
        for path in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
        if path.name not in PAGES_ON_DATA and "campaigns" not in path.parts
        for number, line in enumerate(outside_code(path.read_text()), 1)
        if re.search(r"\bepochs?\b", line, re.IGNORECASE)
    ]
    assert not wrong, "\n".join(wrong)


def outside_code(page: str) -> list[str]:
    """Return the lines of a page without what is in backticks or in a fenced block."""
    page = re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), page, flags=re.MULTILINE | re.DOTALL)
    return [re.sub("`[^`]*`", "", line) for line in page.splitlines()]


@pytest.mark.parametrize("text", ["of epoch {n}", "start 1 is superseded"])
def test_rule_finds_the_words(text: str) -> None:
    assert [each for each in texts(f"raise Error(f{text!r})") if WORD.search(each)]
