"""Ctrl-C in the engine's commands besides training."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from midstream_core import records


@pytest.mark.parametrize("command", ["convert", "rehearse", "data"])
def test_ctrl_c_ends_a_command_with_one_line(command: str, tmp_path: Path) -> None:
    """The command is in the middle of reading a pipe when the signal arrives."""
    source = tmp_path / "source"
    source.mkdir()
    pipe = source / "config.json"
    os.mkfifo(pipe)
    target = tmp_path / "target"
    arguments = [str(source), str(target)] if command == "convert" else ["--config_path", str(pipe)]
    process = subprocess.Popen(
        [sys.executable, "-m", f"midstream_engine.{command}", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"},
        # Some shells start background jobs with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    with process, opened_by_reader(pipe, process):
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=120)
    assert process.returncode == records.EXIT_SIGNAL + signal.SIGINT
    assert (output, errors) == ("", "midstream: interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@contextmanager
def opened_by_reader(pipe: Path, process: subprocess.Popen[str]) -> Iterator[None]:
    """Hold the writing end of ``pipe``, opened once ``process`` reads it. A process that ends before fails the test."""
    deadline = time.monotonic() + 240
    while True:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the command does not read the pipe"
        try:
            descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError as error:
            if error.errno != errno.ENXIO:  # nobody reads yet
                raise
        time.sleep(0.02)
    try:
        yield
    finally:
        os.close(descriptor)
