"""`--adopt` and `--init-run`: trainers that run already, and run files."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from midstream.errors import Exit, UsageError
from midstream.json_events.result_event import AdoptResult, InitRunResult
from midstream.output import Output

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet


def adopt(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """Adopt the trainer that runs in a directory of a host."""
    from midstream.hosts.host_pool import HostPool
    from midstream.launch.adopt_process import adopt_process, adopted_words
    from midstream.launch.progress_line import reporter

    hosts = HostPool(fleet)
    try:
        attempt = adopt_process(hosts, options.adopt, options.run_id, reporter(output, verbose=False))
    finally:
        hosts.close()
    output.event(
        AdoptResult(run=attempt.run_id, host=attempt.host, attempt=attempt.number),
        adopted_words(attempt),
    )
    return Exit.DONE


def init_run(fleet: Fleet | None, options: argparse.Namespace, output: Output) -> int:
    """Write ``run.yaml`` in the present directory, or in the one that was examined.

    The latter is a local directory.
    """
    from midstream.hosts.host_pool import HostPool
    from midstream.launch.initial_run_file import RUN_FILE, launcher_of, look_at, run_file_text, split_place

    hosts = HostPool(fleet) if fleet is not None else None
    try:
        host, directory = split_place(options.init_run, hosts)
        survey = look_at(host, directory)
        launcher = launcher_of(survey)
    finally:
        if hosts is not None:
            hosts.close()
    path = Path(RUN_FILE) if hosts is not None else Path(survey.directory) / RUN_FILE
    if path.exists():
        raise UsageError(f"{path} exists", "move it away: a run file is not overwritten")
    try:
        with open(path, "x", encoding="utf-8", opener=_private) as file:
            file.write(run_file_text(survey, launcher))
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", "a directory that you can write") from error
    shown = f"process {launcher.pid}" if launcher is not None else "the programs"
    output.event(
        InitRunResult(file=str(path)),
        f"{path} is written from {shown} in {survey.directory}: check it, then midstream --launch {path} --on TARGET",
    )
    return Exit.DONE


def _private(path: str, flags: int) -> int:
    """Open a new file that only its owner can read.

    Not every secret of a command line looks like one.
    """
    return os.open(path, flags, 0o600)
