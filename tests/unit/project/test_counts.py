"""Counts have their nouns in the right number, and the app writes every count with `midstream.counts`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import midstream
from midstream.counts import agree, count

APP = Path(midstream.__file__).parent
NOUNS = (
    "arrays|attempts|checkpoints|checks|chips|chunks|copies|devices|examples|files|hosts|jobs|leftovers|lines|matches|"
    "migrations|nodes|objects|points|problems|processes|records|rows|sequences|slices|steps|targets|tries|updates|"
    "warnings|workers|CPUs"
)
COUNTED = re.compile(rf" (?:(?:more|fixed|healthy|new|older|other|virtual) )?(?:{NOUNS})\b")


def test_count_has_singular_and_plural() -> None:
    assert [count(n, "step") for n in (0, 1, 2, 1204)] == ["0 steps", "1 step", "2 steps", "1,204 steps"]
    assert count(1, "process", "processes") == "1 process"
    assert count(2, "process", "processes") == "2 processes"
    assert (agree(1), agree(2), agree(1, "was", "were")) == ("is", "are", "was")


def plurals(file: Path) -> list[str]:
    """Return the f-strings of a file with a number that is followed by a plural, whatever the number is."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, text in zip(node.values, node.values[1:], strict=False):
            if not (isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant)):
                continue
            constant = isinstance(value.value, ast.Name) and value.value.id.isupper()  # a limit, which is not 1
            if not constant and COUNTED.match(str(text.value)):
                found.append(f"{file.relative_to(APP)}:{node.lineno}: {ast.unparse(value)}{text.value}")
    return found


@pytest.mark.long
def test_app_has_no_count_with_a_fixed_plural() -> None:
    files = [file for file in APP.rglob("*.py") if "remote" not in file.relative_to(APP).parts[:1]]
    assert [line for file in files for line in plurals(file)] == []
