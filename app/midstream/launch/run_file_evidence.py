"""Evidence of a trainer on a host: process, output, and help of its program."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Callable
from dataclasses import replace

from midstream.errors import MidstreamError
from midstream.hosts.host import Host
from midstream.launch.flags_of_help import flags_of
from midstream.launch.initial_run_file import launcher_of, look_at
from midstream.launch.run_file_draft import Evidence
from midstream_host.trainers import output_survey, program_help

HELP_TIMEOUT = program_help.TIME_LIMIT + 30  # seconds


def gather(host: Host, directory: str, agreed: Callable[[str], bool]) -> Evidence:
    """Return what a directory of a host shows.

    ``agreed`` gets the command that prints the program's help, and returns whether it may be executed.

    Raises:
        UsageError: Several programs run there, and nothing shows which of them trains.
        MidstreamError: The directory is missing.
    """
    survey = look_at(host, directory)
    launcher = launcher_of(survey)
    output = host.call(output_survey.survey_output)(directory=survey.directory)
    python = next(iter(survey.interpreters), "")
    if launcher is not None and "python" in posixpath.basename(launcher.words[0]):
        python = launcher.executable
    evidence = Evidence(survey, launcher, output, python=python)
    return _with_help(host, evidence, agreed)


def _with_help(host: Host, evidence: Evidence, agreed: Callable[[str], bool]) -> Evidence:
    program, python = evidence.program, evidence.python
    if not program or program not in evidence.directory.programs:
        return replace(evidence, no_help="no program of the directory itself trains")
    if not python:
        return replace(evidence, no_help="its interpreter is not known")
    command = shlex.join([python, program, "--help"])
    if not agreed(command):
        return replace(evidence, no_help=f"--yes lets {command} run, for 20 s at most")
    try:
        text = host.call(program_help.read_help, timeout=HELP_TIMEOUT)(
            directory=evidence.directory.directory, python=python, program=program
        )
    except MidstreamError as error:
        return replace(evidence, no_help=error.message)
    return replace(evidence, flags=flags_of(text.text), no_help=text.problem)
