"""Output of flags that only print, to a full disk or to a reader that has exited."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.long
@BUFFERED
@PRINTING
def test_full_disk_is_reported_in_one_line(words: list[str], unbuffered: str) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        assert midstream(words, unbuffered, full) == (Exit.FAILED, FULL)
    finally:
        os.close(full)


@pytest.mark.long
@BUFFERED
@PRINTING
def test_reader_that_has_exited_is_no_error_message(words: list[str], unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert midstream(words, unbuffered, writing) == (Exit.FAILED, "")
    finally:
        os.close(writing)


@pytest.mark.long
@pytest.mark.parametrize("closed", ["0<&-", ">&-", "2>&-", "0<&- >&- 2>&-"])
def test_closed_streams_are_no_error_and_get_no_file(closed: str, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f"hosts: {{here: {{type: local, root: {tmp_path}}}}}\n")
    names = os.path.join(tmp_path, "state", "names.json")
    for words, code in ((["--status", "--json"], Exit.DONE), (["--status", "--nonesuch"], Exit.USAGE)):
        command = f"exec {shlex.join([sys.executable, '-m', 'midstream', '--fleet', str(fleet), *words])} {closed}"
        env = {**os.environ, "MIDSTREAM_STATE": os.path.dirname(names)}
        done = subprocess.run(["sh", "-c", command], env=env, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        assert (not done.stdout) == (">&-" in closed.split() or code == Exit.USAGE)
    assert json.loads(Path(names).read_text()), "what is written is in its own file"


def test_closed_streams_are_open_in_child_processes(tmp_path: Path) -> None:
    links = " ".join(f"$(readlink /proc/$$/fd/{number})" for number in range(3))
    child = f'found="{links}"; echo $found > {tmp_path}/streams'
    code = f"import subprocess, sys; from midstream import cli; cli.main([]); subprocess.run(['sh', '-c', {child!r}])"
    command = f"exec {shlex.join([sys.executable, '-c', code])} 0<&- >&- 2>&-"
    env = {**os.environ, "MIDSTREAM_STATE": str(tmp_path / "state")}
    assert subprocess.run(["sh", "-c", command], check=False, env=env, timeout=60).returncode == 0
    assert (tmp_path / "streams").read_text().split() == ["/dev/null"] * 3
