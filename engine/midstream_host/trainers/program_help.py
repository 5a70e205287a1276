"""Help of a training program, as ``--help`` prints it.

Standard library only; runs on the host. The program is executed, so the user has agreed to that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import posixpath
import re
import signal
import subprocess
import tempfile
from typing import Dict, List

from midstream_host.declarations import once
from midstream_host.shapes import FileName, Text
from midstream_host.trainers.programs import program_texts

TIME_LIMIT = 20.0  # seconds; imports of torch or jax take several
MAX_HELP = 1 << 18  # bytes
# Libraries that print the flags and end. A program without one may take --help as nothing, and train.
PARSERS = re.compile(
    r"^\s*(?:from|import)\s+(?:argparse|click|typer|tyro|fire|absl|simple_parsing|jsonargparse|draccus|docopt)\b"
    r"|HfArgumentParser|ArgumentParser\(",
    re.MULTILINE,
)


@dataclasses.dataclass(frozen=True)
class ProgramHelp:
    """Help of a program. ``problem``: why there is none, in one line."""

    text: Text = ""
    problem: Text = ""


def has_parser(text: str) -> bool:
    """Return whether a program's text has a parser of flags."""
    return PARSERS.search(text) is not None


@once("it executes the user's program")
def read_help(directory: str, python: FileName, program: FileName) -> ProgramHelp:
    """Run a program with ``--help``, for `TIME_LIMIT` at most.

    It runs in an empty directory, and without accelerators.

    ``python`` is an interpreter, ``program`` the path of a program below ``directory``.
    """
    directory = os.path.realpath(os.path.expanduser(directory))
    if not any(map(has_parser, program_texts(directory, [program]))):
        return ProgramHelp(problem="{} has no parser of flags, and might train instead".format(program))
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1",
                   "COLUMNS": "200", "PYTHONPATH": directory, "WANDB_MODE": "disabled"}  # fmt: skip
    command = [python, posixpath.join(directory, program), "--help"]
    with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryFile() as output:
        return _run(command, empty, environment, output.fileno())


def _run(command: List[str], directory: str, environment: Dict[str, str], output: int) -> ProgramHelp:
    try:
        child = subprocess.Popen(
            command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return ProgramHelp(problem="{} cannot be started: {}".format(command[0], error.strerror))
    try:
        code = child.wait(TIME_LIMIT)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        _kill(child)
    if code is None:
        return ProgramHelp(problem="it has not ended after {:.0f} s, and was killed".format(TIME_LIMIT))
    text = os.pread(output, MAX_HELP, 0).decode(errors="replace")
    if code:
        last = text.strip().splitlines()[-1:] or ["it printed nothing"]
        return ProgramHelp(problem="it ended with code {}: {}".format(code, last[0][:200]))
    return ProgramHelp(text)


def _kill(child: "subprocess.Popen[bytes]") -> None:
    """Kill a program with all processes of its session, and reap it."""
    with contextlib.suppress(ProcessLookupError):  # all have ended
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
