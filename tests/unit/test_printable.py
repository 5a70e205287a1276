"""What is shown of words from elsewhere."""

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


def test_every_character_that_is_no_text_is_shown_as_an_escape():
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        category = unicodedata.category(character)
        if category in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            assert printable(character) == character.encode("unicode_escape").decode(), hex(code)
            assert without_controls(character) == "", hex(code)
        elif category != "Cn":  # of a Unicode that this Python does not know
            assert printable(character) == character, hex(code)


@given(st.text(alphabet=st.characters(exclude_categories=("Cn",))), st.sampled_from(("", "\n", "\n\t")))
def test_nothing_unsafe_is_left_and_nothing_else_is_changed(text: str, keep: str):
    shown = printable(text, keep)
    assert not unsafe(shown, keep)
    assert printable(shown, keep) == shown
    assert [each for each in text if not unsafe(each)] == list(without_controls(text))
    if not unsafe(text, keep):
        assert shown == text


@pytest.mark.parametrize("words", SEQUENCES.values(), ids=SEQUENCES)
def test_the_command_line_prints_one_line_for_one_line(words: str):
    data, talk = io.StringIO(), io.StringIO()
    output = Output(False, data, talk)
    output.value({}, f"a\n{words}b\tc")
    output.talk(words)
    output.error(MidstreamError(f"no run {words}", f"see {words}"))
    for stream, lines in ((data, 1), (talk, 2)):
        assert stream.getvalue().count("\n") == lines
        assert not unsafe(stream.getvalue(), "\n\t")
        stream.getvalue().encode()


def test_a_table_stays_in_its_columns():
    lines = table([("RUN", "HOST"), (f"a\n{ALL}", "x\ty"), ("b", "z")])
    assert len(lines) == 3
    assert not unsafe("".join(lines))
    assert lines[0].index("HOST") == lines[1].index("x\\ty") == lines[2].index("z")


def test_json_is_exact_and_plain():
    data = io.StringIO()
    Output(True, data, io.StringIO()).value({"event": "log", "line": ALL + "\x7f"})
    assert data.getvalue().isascii()
    assert not unsafe(data.getvalue(), "\n")
    assert json.loads(data.getvalue())["line"] == ALL + "\x7f"


def test_values_are_cleaned_to_their_depth():
    cleaned = printable_values({"a": [ALL, {ALL: (ALL, 3, None, 1.5, True)}]})
    assert not unsafe(json.dumps(cleaned, ensure_ascii=False))
    assert cleaned["a"][1][printable(ALL)][1:] == [3, None, 1.5, True]


def test_a_long_text_is_shown_by_its_beginning_and_its_length():
    assert excerpt("x" * 1000) == "x" * 1000
    assert excerpt("x" * 1001) == "x" * 1000 + "... (1,001 characters)"
