"""Processes that check and write what another one decrypts."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCRIPT = """
import os, socket, sys
from functools import partial
from midstream_host.copy.frames import ProblemError
from midstream_host.copy.writing_process import WritingProcess

def work(number, stream, report):
    try:
        report("read", stream=number, text=bytes(stream.exactly(6)).decode())
        if "die" in sys.argv:
            os.kill(os.getpid(), 9)
        stream.exactly(6)
    except ProblemError as error:
        report("problem", stream=number, **error.fields)

processes = []
for number in range(3):
    processes.append(WritingProcess(partial(work, number), list(processes)))
for number, process in enumerate(processes[:2]):  # the others live on
    one, other = socket.socketpair()
    one.sendall(b"abcdefgh")
    one.close()
    process.receive(other)
processes[2].close()
print("ended")
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the script; it must end by itself."""
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.system
def test_stream_that_breaks_off_ends_its_process_alone() -> None:
    done = run()
    *lines, last = done.stdout.splitlines()
    assert (done.returncode, last) == (0, "ended"), done.stderr
    events = [json.loads(line) for line in lines]
    assert [(each["stream"], each["event"]) for each in events] == [
        (0, "read"), (0, "problem"), (1, "read"), (1, "problem"),
    ]  # fmt: skip
    assert {each["kind"] for each in events if each["event"] == "problem"} == {"truncated"}


@pytest.mark.system
def test_killed_process_ends_the_program_with_its_signal() -> None:
    done = run("die")
    assert done.returncode == 1
    assert "ended" not in done.stdout.splitlines()
    assert "ended by signal 9" in done.stderr
