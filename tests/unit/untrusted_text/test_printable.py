"""Printable text: how text from hosts is shown."""

from __future__ import annotations

import io
import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.errors import MidstreamError
from midstream.output import Output, table
from midstream.printable import excerpt, printable, printable_values, without_controls
from support.hostile_text import ALL, SEQUENCES, unsafe


def test_every_control_character_is_escaped() -> None:
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        category = unicodedata.category(character)
        if category in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            assert printable(character) == character.encode("unicode_escape").decode(), hex(code)
            assert without_controls(character) == "", hex(code)
        elif category != "Cn":  # assigned in a newer Unicode than this Python has
            assert printable(character) == character, hex(code)


@given(st.text(alphabet=st.characters(exclude_categories=("Cn",))), st.sampled_from(("", "\n", "\n\t")))
def test_printable_changes_unsafe_characters_only(text: str, keep: str) -> None:
    shown = printable(text, keep)
    assert not unsafe(shown, keep)
    assert printable(shown, keep) == shown
    assert [each for each in text if not unsafe(each)] == list(without_controls(text))
    if not unsafe(text, keep):
        assert shown == text


@pytest.mark.parametrize("text", SEQUENCES.values(), ids=SEQUENCES)
def test_output_prints_one_line_per_message(text: str) -> None:
    data, talk = io.StringIO(), io.StringIO()
    output = Output(False, data, talk)
    output.value({}, f"a\n{text}b\tc")
    output.message(text)
    output.error(MidstreamError(f"no run {text}", f"see {text}"))
    for stream, lines in ((data, 1), (talk, 2)):
        assert stream.getvalue().count("\n") == lines
        assert not unsafe(stream.getvalue(), "\n\t")
        stream.getvalue().encode()


def test_table_keeps_its_columns() -> None:
    lines = table([("RUN", "HOST"), (f"a\n{ALL}", "x\ty"), ("b", "z")])
    assert len(lines) == 3
    assert not unsafe("".join(lines))
    assert lines[0].index("HOST") == lines[1].index("x\\ty") == lines[2].index("z")


def test_json_output_is_exact_ascii() -> None:
    data = io.StringIO()
    Output(True, data, io.StringIO()).value({"event": "log", "line": ALL + "\x7f"})
    assert data.getvalue().isascii()
    assert not unsafe(data.getvalue(), "\n")
    assert json.loads(data.getvalue())["line"] == ALL + "\x7f"


def test_printable_values_escapes_nested_values() -> None:
    cleaned = printable_values({"a": [ALL, {ALL: (ALL, 3, None, 1.5, True)}]})
    assert not unsafe(json.dumps(cleaned, ensure_ascii=False))
    assert cleaned["a"][1][printable(ALL)][1:] == [3, None, 1.5, True]


def test_excerpt_shows_beginning_and_length() -> None:
    assert excerpt("x" * 1000) == "x" * 1000
    assert excerpt("x" * 1001) == "x" * 1000 + "... (1,001 characters)"
