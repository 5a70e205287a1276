"""Pipes that one thread ends while another uses them; the order of events is forced."""

from __future__ import annotations

import fcntl
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from midstream.hosts import child_pipes
from midstream.hosts.child_pipes import TimedPipe, WritingPipe, is_readable
from midstream.hosts.deadline import Deadline


@pytest.fixture(name="writing")
def _writing() -> Iterator[list[int]]:
    """The other ends of the pipes."""
    made: list[int] = []
    yield made
    for each in made:
        os.close(each)


@pytest.fixture
def pipe(writing: list[int]) -> Iterator[TimedPipe]:
    reading, other = os.pipe()
    writing.append(other)
    with TimedPipe(reading) as made:
        yield made


def test_what_is_written_after_the_end_goes_nowhere(tmp_path: Path) -> None:
    """A thread that was about to write as the pipe was ended does not write to another file of that number."""
    reading, descriptor = os.pipe()
    pipe = WritingPipe(descriptor)
    pipe.write(b"before")
    pipe.end()
    with (tmp_path / "other").open("wb", buffering=0) as other:
        assert other.fileno() != descriptor, "the number is not free"
        os.write(descriptor, b"after")
    assert (os.read(reading, 100), os.read(reading, 100)) == (b"before", b"")
    os.close(reading)
    pipe.close()
    pipe.end()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_pipe_closed_while_it_is_ended_spares_other_files(
    pipe: TimedPipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, end, others = pipe.fileno(), child_pipes.end_pipe, list[int]()
    closing = threading.Thread(target=pipe.close)

    def closed_before(descriptor: int) -> None:
        closing.start()
        closing.join(0.2)  # it has to wait for the end
        with (tmp_path / "other").open("wb") as other:
            others.append(fcntl.fcntl(other, fcntl.F_DUPFD_CLOEXEC, number))  # the pipe's number, if it is free
        end(descriptor)

    monkeypatch.setattr(child_pipes, "end_pipe", closed_before)
    assert pipe.end(0.0)
    closing.join(60)
    os.write(others[0], b"data")
    os.close(others[0])
    assert (tmp_path / "other").read_bytes() == b"data"
    assert pipe.closed


def test_pipe_left_after_its_read_is_closed(pipe: TimedPipe, writing: list[int]) -> None:
    os.write(writing[0], b"data")
    assert pipe.read(10) == b"data"
    pipe.leave()
    assert pipe.closed
    assert pipe.end(0.0)


def too_much() -> None:
    raise EOFError


@pytest.mark.parametrize("fails", [False, True])
def test_pipe_left_as_its_read_returns_is_closed(pipe: TimedPipe, writing: list[int], fails: bool) -> None:
    class Lock:
        """The lock of reads; the pipe is left just before it is released."""

        def __init__(self) -> None:
            self._lock = threading.Lock()
            self.acquire, self.release = self._lock.acquire, self._lock.release

        def __enter__(self) -> None:
            self.acquire()

        def __exit__(self, *_: object) -> None:
            pipe.leave()
            assert not pipe.closed, "a read goes on"
            self.release()

    lock: Any = Lock()
    pipe._reading = lock
    os.write(writing[0], b"data")
    if fails:
        pipe.deadline, pipe.check = Deadline(60.0), too_much
        with pytest.raises(EOFError):
            pipe.read(10)
    else:
        assert pipe.read(10) == b""
    assert pipe.closed


def test_read_of_a_pipe_that_was_left_is_at_its_end(pipe: TimedPipe, writing: list[int]) -> None:
    os.write(writing[0], b"data")
    pipe.leave()
    assert pipe.readall() == b""


def test_pipes_with_high_numbers_are_read_in_time() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip(f"at most {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    try:
        low, other = os.pipe()
        high = fcntl.fcntl(low, fcntl.F_DUPFD, 1100)
        os.close(low)
        with TimedPipe(high) as pipe:
            assert not is_readable(high, 0.0)
            os.write(other, b"an answer")
            pipe.deadline = Deadline(30.0)
            assert pipe.read(100) == b"an answer"
            os.close(other)
            assert is_readable(high, None)
            assert pipe.read(100) == b""
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
