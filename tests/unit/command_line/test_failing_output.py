"""Output of flags that only print, to a full disk or to a reader that has exited."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from midstream.errors import Exit

FULL = "midstream: the output cannot be written: No space left on device (hint: free some)\n"
PRINTING = pytest.mark.parametrize(
    "words",
    [["--version"], ["--help"], ["--print-completion", "bash"], ["--print-names", "flags"]],
    ids=lambda words: words[0],
)
BUFFERED = pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])


def midstream(words: list[str], unbuffered: str, stdout: int) -> tuple[int, str]:
    """Return exit code and stderr of a command."""
    done = subprocess.run(
        [sys.executable, "-m", "midstream", *words],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )
    return done.returncode, done.stderr


@BUFFERED
@PRINTING
def test_full_disk_is_reported_in_one_line(words: list[str], unbuffered: str) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        assert midstream(words, unbuffered, full) == (Exit.FAILED, FULL)
    finally:
        os.close(full)


@BUFFERED
@PRINTING
def test_reader_that_has_exited_is_no_error_message(words: list[str], unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert midstream(words, unbuffered, writing) == (Exit.FAILED, "")
    finally:
        os.close(writing)
