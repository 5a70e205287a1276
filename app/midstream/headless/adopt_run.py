"""`--adopt` and `--init-run`: trainers that run already, and run files."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from midstream.errors import Exit, UsageError
from midstream.headless.confirmation import confirmed
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

    The latter is a local directory. What was inferred is printed, and what was not.
    """
    from midstream.hosts.host_pool import HostPool
    from midstream.launch.initial_run_file import RUN_FILE, split_place
    from midstream.launch.run_file_draft import draft
    from midstream.launch.run_file_evidence import gather

    def agreed(command: str) -> bool:
        where = f"in an empty directory of {host.name}, without accelerators, for 20 s at most"
        return options.yes or confirmed(f"run `{command}` {where}, to read the program's flags?", output)

    hosts = HostPool(fleet) if fleet is not None else None
    try:
        host, directory = split_place(options.init_run, hosts)
        evidence = gather(host, directory, agreed)
    finally:
        if hosts is not None:
            hosts.close()
    result = draft(evidence)
    path = Path(RUN_FILE) if hosts is not None else Path(evidence.directory.directory) / RUN_FILE
    if path.exists():
        raise UsageError(f"{path} exists", "move it away: a run file is not overwritten")
    try:
        with open(path, "x", encoding="utf-8", opener=_private) as file:
            file.write(result.text)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", "a directory that you can write") from error
    shown = f"process {evidence.launcher.pid}" if evidence.launcher is not None else "the programs"
    place = f"{shown} in {evidence.directory.directory}"
    output.event(
        InitRunResult(file=str(path), inferred=result.inferred, missing=result.missing),
        [
            f"{path} is written from {place}: check it, then midstream --launch {path} --on TARGET",
            *(f"  inferred      {line}" for line in result.inferred),
            *(f"  not inferred  {line}" for line in result.missing),
        ],
    )
    return Exit.DONE


def _private(path: str, flags: int) -> int:
    """Open a new file that only its owner can read.

    Not every secret of a command line looks like one.
    """
    return os.open(path, flags, 0o600)
