"""The filter language: what it accepts, what it finds, and where an error is."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.listing import fleet_fields
from midstream.listing.conditions import Condition, quoted
from midstream.listing.field_type import Field, Fields
from midstream.listing.filter_error import FilterError
from midstream.listing.filter_parser import MAX_LENGTH, parse
from midstream.listing.filter_values import Kind
from midstream.listing.fleet_moment import FleetMoment
from midstream.listing.linear_pattern import LinearPattern, PatternError
from midstream_core import records
from support.tui import fleets, prepared_migrations
from support.tui.fleets import NOW

pytestmark = pytest.mark.usefixtures("utc")

MOMENT = FleetMoment(now=NOW)
ITEM = {
    "run": "nano",
    "state": "training",
    "loss": 2.5,
    "step": 1204,
    "tok/s": 12_345.6,
    "age": 190.0,
    "disk": 20e9,
    "util": 0.93,
    "start": NOW - 3600,
    "tags": ("lr", "wide net"),
    "project": "",
    "grad": None,
}
KINDS = {
    "loss": Kind.NUMBER,
    "step": Kind.NUMBER,
    "tok/s": Kind.NUMBER,
    "grad": Kind.NUMBER,
    "age": Kind.DURATION,
    "disk": Kind.SIZE,
    "util": Kind.SHARE,
    "start": Kind.TIME,
    "tags": Kind.LIST,
}


def _get(name: str) -> Callable[[dict[str, object], FleetMoment], object]:
    return lambda item, _: item[name]


FIELDS = Fields(Field(name, KINDS.get(name, Kind.TEXT), _get(name)) for name in ITEM)


def passes(text: str, **changes: object) -> bool:
    return parse(text, FIELDS, NOW).holds({**ITEM, **changes}, MOMENT)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("  ", True),
        ("nano", True),
        ("NANO train", True),
        ("train nano", True),
        ("nano absent", False),
        ("!nano", False),
        ("! nano", False),
        ("!absent nano", True),
        ("NOT nano", False),
        ("NOT NOT nano", True),
        ("absent OR nano", True),
        ("absent AND nano", False),
        ("nano AND train", True),
        ("absent OR nano absent", False),
        ("nano absent OR train", True),
        ("nano (absent OR train)", True),
        ("NOT (absent OR train)", False),
        ("!(absent)", True),
        ("state:train", True),
        ("proj=x", False),
        ("state:failed", False),
        ("!state:failed", True),
        ("state!=failed", True),
        ("state!=training", False),
        ("run=nan", False),
        ("run=NANO", True),
        ("loss<3 step>1k", True),
        ("loss>3", False),
        ("loss>=2.5 loss<=2.5", True),
        ("loss=2.5", True),
        ("loss:2.5", True),
        ("loss!=2.5", False),
        ("step>1,000", True),
        ("step>1,204", False),
        ("step=1,204", True),
        ("step<1.3k", True),
        ("step>1e3", True),
        ("tok/s>12k", True),
        ("loss<1M", True),
        ("age>3m", True),
        ("age>3m20", False),
        ("age>3m10 OR age=3m10", True),
        ("age<4m", True),
        ("age<1h30m", True),
        ("age>189", True),
        ("age<1d", True),
        ("disk>=20GB", True),
        ("disk>20GiB", False),
        ("disk>19,000MB", True),
        ("util>90%", True),
        ("util>0.95", False),
        ("start:today", True),
        ("start:yesterday", False),
        ("start>2026-11-20", True),
        ("start<2026-11-21", False),
        ("start:2026-11-21", True),
        ("start>2026-11-21", False),
        ("start>=2026-11-21T12:00", False),
        ("tags:lr", True),
        ("tags:net", True),
        ("tags=net", False),
        ('tags="wide net"', True),
        ("wide", True),
        ('project=""', True),
        ('state=""', False),
        ("grad<5", False),
        ("grad>5", False),
        ("!grad<5", True),
        ("run~^na", True),
        ("run~o$", True),
        ("run~^a", False),
        ("run!~^a", True),
        ("~^train", True),
        ("~^net", False),
        ("!~^net", True),
        ("run~(na|x)no", True),
        ('run~"n[a-c]n.*"', True),
        ("tags~^w.*t$", True),
        ('"state:train"', False),
        (r'"no\"quote"', False),
        ('"OR" OR nano', True),
        ("or nano", False),
    ],
)
def test_filter_finds(text: str, expected: bool) -> None:
    assert passes(text) is expected


def test_filter_finds_values_that_are_no_number() -> None:
    assert passes("loss=nan", loss=math.nan)
    assert not passes("loss=nan")
    assert not passes("loss<3", loss=math.nan)
    assert passes("loss=inf", loss=math.inf)


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("loss<abc", 6, "abc is not a number"),
        ("loss<", 6, "a value is missing after loss<"),
        ("step>1,00", 6, "1,00 is not a number"),
        ("nano zzz:1", 6, "no such field zzz; fields are run, state, loss"),
        ("s:1", 1, "s is ambiguous: state, step or start"),
        ("age>abc", 5, "abc is not a duration"),
        ("age>5m1h", 5, "5m1h is not a duration"),
        ("disk>5x", 6, "5x is not a size"),
        ("util>50", 6, "50 is not a share"),
        ("start>2026-13-01", 7, "2026-13-01 is not a time"),
        ("state>5", 6, "> does not compare text, which state is"),
        ("loss~5", 5, "~ does not compare a number, which loss is"),
        ("(nano", 1, "this ( is not closed"),
        ("nano)", 5, "this ) closes nothing"),
        ("nano OR", 8, "a condition is missing at the end"),
        ("OR nano", 1, "a condition is missing before OR"),
        ("nano OR OR x", 9, "a condition is missing before OR"),
        ("()", 2, "a condition is missing before )"),
        ("!", 2, "a condition is missing at the end"),
        ('run="nano', 5, "this quote is not closed"),
        ('run="na"no', 9, "a space is missing after the quote"),
        ("run~[a", 5, "missing ]: [a"),
        ('run~"x[a"', 7, "missing ]: [a"),
        ("run~a(b", 5, "missing ): a(b"),
        ("run~", 5, "a value is missing after run~"),
        ("~", 2, "a pattern is missing after ~"),
        ("~*", 2, "no argument for repetition operator: *"),
        ("~(?=a)", 2, "invalid perl operator: (?="),
        ("~a{3000}", 3, "invalid repetition size: {3000}"),
        ("(" * 40 + "a", 31, "more than 30 conditions in each other"),
        ("x" * 600, MAX_LENGTH + 1, "the filter has 600 characters"),
    ],
)
def test_error_names_column_and_reason(text: str, column: int, reason: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse(text, FIELDS, NOW)
    assert caught.value.column == column
    assert caught.value.reason.startswith(reason)
    assert caught.value.message == f"filter, column {column}: {caught.value.reason}"


# ---------------------------------------------------------------------------------------------- properties

TEXTS = st.text(st.characters(codec="utf-8"), max_size=60)
PIECES = st.lists(
    st.sampled_from(
        [" ", "(", ")", "!", "~", '"', "\\", ":", "<", "<=", "!=", "OR", "AND", "NOT", "run", "step", "5m", "[", "a"]
    ),
    max_size=20,
).map("".join)  # fmt: skip
VALUES = {
    Kind.NUMBER: ("5", "1,000", "2.5k", "nan", "-1e-3"),
    Kind.DURATION: ("5m", "1h30m", "3m20", "90"),
    Kind.SIZE: ("20GB", "1TiB", "500"),
    Kind.SHARE: ("50%", "0.5"),
    Kind.TIME: ("today", "2026-11-20", "2026-11-20T10:30"),
}


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    field = draw(st.sampled_from(list(FIELDS.values())))
    if field.kind in (Kind.TEXT, Kind.LIST):
        operator = draw(st.sampled_from((":", "=", "!=", "~", "!~")))
        text = draw(TEXTS) if "~" not in operator else draw(st.from_regex(r"\A[a-z.^$]{1,8}\Z"))
        return f"{field.name}{operator}{quoted(text)}"
    operator = draw(st.sampled_from((":", "=", "!=", "<", "<=", ">", ">=")))
    return f"{field.name}{operator}{draw(st.sampled_from(VALUES[field.kind]))}"


FILTERS = st.recursive(
    st.one_of(comparisons(), TEXTS.map(quoted)),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from((" ", " AND ", " OR ")), inner).map("".join),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"NOT ({text})"),
    ),
    max_leaves=8,
)


def parsed(text: str) -> Condition | FilterError:
    try:
        return parse(text, FIELDS, NOW)
    except FilterError as error:
        return error


@given(st.one_of(TEXTS, PIECES))
def test_any_text_parses_or_has_an_error_at_a_column_of_it(text: str) -> None:
    found = parsed(text)
    if isinstance(found, FilterError):
        assert 1 <= found.column <= len(text) + 1
        assert found.reason
    else:
        assert found.holds(ITEM, MOMENT) in (True, False)


@given(FILTERS)
def test_written_condition_parses_to_an_equal_one(text: str) -> None:
    found = parsed(text)
    if isinstance(found, FilterError):
        assert len(text) > MAX_LENGTH, found
        return
    written = str(found)
    if len(written) <= MAX_LENGTH:
        again = parse(written, FIELDS, NOW)
        assert str(again) == written
        assert again.holds(ITEM, MOMENT) is found.holds(ITEM, MOMENT)


@given(FILTERS, FILTERS)
def test_words_and_parentheses_are_boolean_algebra(one: str, other: str) -> None:
    def holds(text: str) -> bool:
        return parse(text, FIELDS, NOW).holds(ITEM, MOMENT)

    if 2 * len(one) + 2 * len(other) > MAX_LENGTH - 40:
        return
    first, second = holds(one), holds(other)
    assert holds(f"({one}) ({other})") is (first and second)
    assert holds(f"({one}) OR ({other})") is (first or second)
    assert holds(f"NOT ({one})") is not first
    assert holds(f"NOT (({one}) OR ({other}))") is holds(f"NOT ({one}) NOT ({other})")


@pytest.mark.long
@given(TEXTS)
def test_quoted_text_is_searched_for_as_it_is(text: str) -> None:
    found: Condition = parse(quoted(text) or '""', FIELDS, NOW)
    assert found.holds({**ITEM, "run": f"a{text}b"}, MOMENT)


# ---------------------------------------------------------------------------------------------- patterns

LETTERS = "abAB01_-. "
PATTERNS = st.recursive(
    st.sampled_from(["a", "b", "A", "0", ".", r"\d", r"\w", r"\W", r"\.", "[ab]", "[^a]", r"[a-z\d-]", "^", "$"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join),
        inner.map(lambda text: f"({text})"),
        st.tuples(st.just("(?:"), inner, st.sampled_from([")*", ")+", ")?", "){2}", "){1,}", "){0,2}"])).map("".join),
    ),
    max_leaves=6,
)  # fmt: skip


@given(PATTERNS, st.text(LETTERS, max_size=10))
@settings(max_examples=200)
def test_patterns_find_what_re_finds(pattern: str, text: str) -> None:
    assert LinearPattern(pattern).search(text) is bool(re.search(pattern, text, re.IGNORECASE)), (pattern, text)


@given(st.text(string.printable, max_size=20))
def test_any_pattern_compiles_or_is_refused(pattern: str) -> None:
    try:
        LinearPattern(pattern).search("aab")
    except PatternError as error:
        position = error.position
    else:
        position = 0
    assert 0 <= position <= len(pattern)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b$", "(a*)*b", "(.*)(.*)(.*)(.*)x", "(a|b|ab)*c"])
def test_patterns_that_take_exponential_time_elsewhere_end(pattern: str) -> None:
    """With backtracking, a text of 3,000 characters would take longer than the universe has existed."""
    assert not LinearPattern(pattern).search("a" * 3000 + "!")


@pytest.mark.parametrize(
    ("pattern", "words", "position"),
    [
        ("(a", r"missing \): \(a", 0),
        ("abc[a-", r"missing \]: \[a-", 3),
        (r"a\1", "invalid escape sequence", 1),
        ("ab(?=c)", "invalid perl operator", 2),
        ("((){9}){999}", "invalid repetition size", 7),
    ],
)
def test_refused_pattern_is_named_with_its_position(pattern: str, words: str, position: int) -> None:
    with pytest.raises(PatternError, match=words) as refused:
        LinearPattern(pattern)
    assert refused.value.position == position


# ---------------------------------------------------------------------------------------------- fields


def test_run_fields_have_the_values_of_their_kinds() -> None:
    run = fleets.run()
    assert run.status is not None
    assert run.lineage is not None
    entry = replace(run.lineage.entries[0], started=NOW - 7200)
    run = replace(
        run,
        status=replace(run.status, project="ablations", tags=["lr", "wide"]),
        lineage=records.Lineage("nano").with_entry(entry),
    )
    moment = FleetMoment(fleets.small_fleet(run), (), NOW)
    for text in (
        "project=ablations tags=wide tags:lr",
        "start:today age<5s step>1,000 loss<2.5 devices=2xcpu host=small ownership=1 attempt:1 tok/s>12k",
    ):
        assert parse(text, fleet_fields.RUNS, NOW).holds(run, moment), text


def test_every_field_of_every_list_can_be_read() -> None:
    snapshot = fleets.big_fleet()
    moment = FleetMoment(snapshot, (), NOW)
    bare = replace(snapshot.runs[0], status=None, lineage=None, curve=())
    items = (
        (fleet_fields.HOSTS, snapshot.hosts),
        (fleet_fields.RUNS, (*snapshot.runs, bare)),
        (fleet_fields.MIGRATIONS, (prepared_migrations.migration(), prepared_migrations.certified())),
    )
    for fields, values in items:
        for field in fields.values():
            for value in (field.get(item, moment) for item in values):
                kinds = {Kind.TEXT: str, Kind.LIST: tuple}.get(field.kind, int | float | None)
                assert isinstance(value, kinds), (field.name, value)
