"""Processes that work in a directory, as `--init-run` and `--adopt` find them."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from midstream.errors import UsageError
from midstream.launch.initial_run_file import launcher_of
from midstream_host.trainers.processes import look
from support.paths import REPOSITORY

LOOK = """
import json
from midstream_host.trainers.processes import look
print(json.dumps([process.pid for process in look({!r}).processes]))
"""


def test_look_leaves_out_the_command_that_calls_it(tmp_path: Path) -> None:
    trainer = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], cwd=tmp_path)
    try:
        # As `midstream --init-run .` in that directory: a command of Python, whose child looks.
        child = LOOK.format(str(tmp_path))
        command = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {child!r}]))"
        argv = [sys.executable, "-c", command]
        where = os.pathsep.join(str(REPOSITORY / name) for name in ("app", "engine"))
        said = subprocess.run(
            argv, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": where}
        )
        assert json.loads(said.stdout) == [trainer.pid], said.stderr
        assert [each.pid for each in look(str(tmp_path)).processes] == [trainer.pid]
    finally:
        trainer.kill()
        trainer.wait()


def program(text: str) -> str:
    """A command that runs a program."""
    return shlex.join([sys.executable, "-c", text])


READY = "open('ready', 'w').close()"  # a fifo, which the test waits at
TRAIN = f"import time; file = open('out.txt', 'w'); {READY}; time.sleep(600)"
BESIDE = {
    "tee": "{train} | tee train.log",
    "a filter in Python": "{train} | {python} -c 'import sys; [print(line) for line in sys.stdin]'",
    "tail": "touch a.log; tail -f a.log & {train}",
    "a server": "{python} -c 'import time; time.sleep(600)' & {train}",
    "in a pipeline of its own": "cat /dev/zero | {train}",
}


@contextmanager
def running(command: str, directory: Path) -> Iterator[None]:
    """Run a line of a shell; its trainer is ready when it opens the fifo."""
    os.mkfifo(directory / "ready")
    shell = subprocess.Popen(["bash", "-c", command], cwd=directory, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        (directory / "ready").read_bytes()
        yield
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


@pytest.mark.parametrize("line", BESIDE.values(), ids=BESIDE)
def test_trainer_is_found_beside_other_programs(line: str, tmp_path: Path) -> None:
    """They gave "2 programs run ... (hint: end those that do not train)"; the end of `tee` would end the training."""
    with running(line.format(train=program(TRAIN), python=sys.executable), tmp_path):
        launcher = launcher_of(look(str(tmp_path)))
        assert launcher is not None
        assert launcher.words[-1] == TRAIN


def test_trainer_that_computes_is_found_beside_one_that_does_not(tmp_path: Path) -> None:
    computing = f"import jaxlib.xla_client, time; {READY}; time.sleep(600)"
    line = f"{program(TRAIN.replace(READY, 'pass'))} & {program(computing)}"
    with running(line, tmp_path):
        launcher = launcher_of(look(str(tmp_path)))
        assert launcher is not None
        assert launcher.words[-1] == computing


def test_no_program_is_chosen_without_evidence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "other")
    line = f"{program(TRAIN.replace('ready', 'other'))} & {program(TRAIN)}"
    with running(line, tmp_path):
        (tmp_path / "other").read_bytes()
        with pytest.raises(UsageError, match="nothing shows which of them trains") as refused:
            launcher_of(look(str(tmp_path)))
        assert "end " not in refused.value.hint


def test_interpreter_of_a_virtual_environment_is_the_one_in_it(tmp_path: Path) -> None:
    """`python` of an activated environment gave the system's interpreter, which lacks its packages."""
    link = tmp_path / "venv" / "bin" / "python"
    link.parent.mkdir(parents=True)
    link.symlink_to(sys.executable)
    for line in ("PATH=venv/bin:$PATH exec python", "exec venv/bin/python"):
        code = "import time; open('ready', 'w').write(''); time.sleep(600)"
        with running(f"{line} -c {shlex.quote(code)}", tmp_path):
            launcher = launcher_of(look(str(tmp_path)))
            assert launcher is not None
            assert launcher.executable == str(link)
        (tmp_path / "ready").unlink()
    assert look(str(tmp_path)).interpreters == [str(link)]
