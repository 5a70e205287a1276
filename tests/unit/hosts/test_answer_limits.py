"""Limits of an answer: bytes, values, lines, seconds."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.errors import RemoteError
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.host import Host
from midstream.hosts.local_host import LocalHost
from midstream.hosts.rpc import answer_limits
from midstream.hosts.rpc.answer_limits import decode, decode_file
from midstream.watch import host_log
from midstream.watch.log_query import LogQuery
from midstream_core import records
from midstream_host import declarations
from midstream_host.runs.log_pages import LogMatches, LogPage
from support.remote_functions import declared_functions


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    return LocalHost("lab", LocalHostConfig(root=str(tmp_path)))


def test_every_declared_function_has_an_answer_limit() -> None:
    for function in declared_functions():
        declaration = declarations.declaration_of(function)
        assert declaration is not None
        assert 0 < declaration.answer_limit <= declarations.MANIFEST_LIMIT, function


@pytest.mark.parametrize(
    "change",
    [{"begin": 9}, {"end": 200}, {"size": 1}, {"text": "x" * 101}, {"begin": 0, "end": 1}, {"text": "long\n" * 21}],
)
def test_log_page_with_other_bytes_is_refused(host: LocalHost, change: dict[str, object]) -> None:
    def answer(**changes: object) -> LogPage:
        return LogPage(**{"text": "x" * 100, "begin": 10, "end": 110, "size": 150, **changes})

    class Answering:
        name = "lab"

        def __init__(self, page: LogPage) -> None:
            self.call = lambda function: lambda **arguments: page

    assert host_log.read_page(cast(Host, Answering(answer())), "log", 10, 110).lines == ("x" * 100,)
    with pytest.raises(RemoteError, match=r"lab: runs\.log_pages\.page: bytes "):
        host_log.read_page(cast(Host, Answering(answer(**change))), "log", 10, 110)


@pytest.mark.parametrize("change", [{"count": 51}, {"searched": 151}, {"before": 40}, {"after": 39}, {"after": 150}])
def test_log_matches_that_cannot_be_are_refused(change: dict[str, int]) -> None:
    def found(**changes: int) -> LogMatches:
        return LogMatches(**{"count": 2, "searched": 50, "size": 150, "before": 20, "after": 60, **changes})

    class Answering:
        name = "lab"

        def __init__(self, matches: LogMatches) -> None:
            self.call = lambda function: lambda **arguments: matches

    assert host_log.search(cast(Host, Answering(found())), "log", LogQuery(("x",), (), True), 40).count == 2
    with pytest.raises(RemoteError, match=r"lab: runs\.log_pages\.search: "):
        host_log.search(cast(Host, Answering(found(**change))), "log", LogQuery(("x",), (), True), 40)


# ---------------------------------------------------------------------------------------------------------- values

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.long
@given(VALUES)
def test_decode_returns_json_values_unchanged(value: object) -> None:
    text = json.dumps(value).encode()
    assert decode(text) == value
    assert decode(text, most=0 if not answer_limits._has_more(text, 0) else 10**6) == value


@pytest.mark.long
@pytest.mark.parametrize(
    "text",
    [
        b"[" + b"[]," * 600_000 + b"0]",
        b"[" + b'{"a":1},' * 200_000 + b"0]",
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b"9" * 100_000,
        b'"' + b'\\"' * 1_000_000,
        b"\\" * 1_000_000,
    ],
    ids=["lists", "objects", "open", "nested", "digits", "escapes", "backslashes"],
)
def test_decode_refuses_json_that_expands_in_memory(text: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"."):
            decode(text)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_decode_file_refuses_too_many_values() -> None:
    with pytest.raises(records.RecordError, match=r"far: manifest.json: damaged: .*more than 500,000 values"):
        decode_file("[" + "[]," * 600_000 + "[]]", "far: manifest.json")


@pytest.mark.long
@pytest.mark.parametrize(
    "text",
    [
        b"[" + b'"xxxxxx",' * 1_500_000 + b"0]",
        b'["' + b"x" * (declarations.MANIFEST_LIMIT - 40) + b'\\ud83d\\ude00"]',
        b'["' + b"x" * (declarations.MANIFEST_LIMIT - 40) + b'\xf0\x9f\x98\x80"]',
    ],
    ids=["short strings", "a wide escape", "a wide character"],
)
def test_decode_of_largest_answers_uses_little_memory(text: bytes) -> None:
    test_decode_refuses_json_that_expands_in_memory(text)


def test_decode_reads_wide_characters_beside_long_text() -> None:
    value = {"long": "x" * declarations.PAGE_LIMIT, "name": "\u6570\u636e \U0001f600", "text": "\\u6570" * 10}
    assert decode(json.dumps(value).encode()) == value


def test_decode_does_not_count_commas_in_strings() -> None:
    text = json.dumps({"value": "," * (1 << 21)}).encode()
    assert len(decode(text)["value"]) == 1 << 21
