"""What is read of an answer: bytes, values, lines, seconds."""

from __future__ import annotations

import json
import sys
import tracemalloc
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.errors import LostContact
from midstream.fleet.fleet import LocalHost
from midstream.hosts.local_host import LocalMachine
from midstream.hosts.rpc import answer_limits
from midstream.hosts.rpc.answer_limits import AnswerTooLarge, decode, decode_file, read_line
from midstream_engine import records

DRIP = "while :; do printf x; sleep 0.05; done"


@pytest.fixture
def host(tmp_path: Path) -> LocalMachine:
    return LocalMachine("lab", LocalHost(root=str(tmp_path)))


def test_a_command_that_sends_a_byte_now_and_then_ends_at_its_deadline(host: LocalMachine):
    with pytest.raises(LostContact, match="lab: sh did not end within 2 s"):
        host.run(["sh", "-c", DRIP], timeout=2.0)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("yes", "lab: sh answered more than 2 MiB: closed"),
        ("yes >&2", "lab: a command, on stderr, answered more than 4"),
    ],
)
def test_a_command_without_end_is_closed(host: LocalMachine, script: str, words: str):
    with pytest.raises(AnswerTooLarge, match=words):
        host.run(["sh", "-c", script])


def test_an_answer_is_named_by_its_function(host: LocalMachine, tmp_path: Path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec cat /dev/zero\n")
    python.chmod(0o755)
    host.far_python = str(python)
    with pytest.raises(AnswerTooLarge, match=r"lab: runs\.run_state\.list_runs answered more than 2 MiB: closed"):
        host.call("runs.run_state.list_runs", root=host.root)
    with pytest.raises(AnswerTooLarge, match=r"lab: verify\.objects\.describe answered more than 16 MiB: closed"):
        host.call("verify.objects.describe", directory="/x", manifest="manifest.json")


def test_lines_have_an_end_in_bytes_and_in_time(host: LocalMachine):
    process = host.open([sys.executable, "-c", "print('a'); print('b' * 5000, flush=True); input()"])
    assert read_line(process, "it", limit=4096) == b"a\n"
    with pytest.raises(AnswerTooLarge, match="lab: it, in one line, answered more than 4 KiB"):
        read_line(process, "it", limit=4096)
    process.close()
    process = host.open(["sh", "-c", DRIP])
    with pytest.raises(LostContact, match="lab: it: nothing that was complete came within 1 s"):
        read_line(process, "it", seconds=1.0)
    process.close()
    process = host.open(["cat"])
    with pytest.raises(LostContact, match="within 1 s"):
        read_line(process, "it", silence=1.0)
    process.close()
    process = host.open(["true"])
    assert read_line(process, "it", silence=60.0) == b""
    process.close()


def test_a_program_that_is_silent_for_long_may_be_so(host: LocalMachine):
    process = host.open(["cat"])
    lines: list[bytes] = []
    reader = Thread(target=lambda: lines.append(read_line(process, "it", seconds=1.0)))
    reader.start()
    reader.join(1.5)
    assert reader.is_alive(), "no byte of a line has come: it is not late"
    process.stdin.write(b"late\n")
    process.stdin.flush()
    reader.join(60)
    assert lines == [b"late\n"]
    process.close()


# ---------------------------------------------------------------------------------------------------------- values

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_values_are_read_as_they_are(value: object):
    text = json.dumps(value).encode()
    assert decode(text) == value
    assert decode(text, most=0 if not answer_limits._has_more(text, 0) else 10**6) == value


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
def test_texts_that_are_more_than_they_seem_are_refused(text: bytes):
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"."):
            decode(text)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_a_hosts_file_with_too_many_values_is_refused():
    with pytest.raises(records.RecordError, match=r"far: manifest.json: damaged: .*more than 500,000 values"):
        decode_file("[" + "[]," * 600_000 + "[]]", "far: manifest.json")


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b'"xxxxxx",' * 1_500_000 + b"0]",
        b'["' + b"x" * (answer_limits.MANIFEST_LIMIT - 40) + b'\\ud83d\\ude00"]',
        b'["' + b"x" * (answer_limits.MANIFEST_LIMIT - 40) + b'\xf0\x9f\x98\x80"]',
    ],
    ids=["short strings", "a wide escape", "a wide character"],
)
def test_the_largest_answers_take_little_memory(text: bytes):
    test_texts_that_are_more_than_they_seem_are_refused(text)


def test_a_wide_character_beside_a_long_text_is_read():
    value = {"long": "x" * answer_limits.PAGE_LIMIT, "name": "\u6570\u636e \U0001f600", "text": "\\u6570" * 10}
    assert decode(json.dumps(value).encode()) == value


def test_commas_in_a_text_are_no_values():
    text = json.dumps({"value": "," * (1 << 21)}).encode()
    assert len(decode(text)["value"]) == 1 << 21
