"""Processes of an attempt on this host: status, exit and the end of their logs."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import List, Optional

from midstream_core import records
from midstream_core.json_types import list_or_empty, object_or_empty
from midstream_host.declarations import reads
from midstream_host.runs import run_state, slurm
from midstream_host.shapes import Text

LOG_BYTES = 16384  # read from a log's end


@dataclasses.dataclass(frozen=True)
class ProcessView(run_state.ProcessState):
    """A process of an attempt.

    ``supervised``: its supervisor runs and will record how it ends.
    """

    process: int
    supervised: bool
    job: Optional[slurm.JobState]
    exit: Optional[records.ProcessExit]
    log: List[Text]  # its last lines


@dataclasses.dataclass(frozen=True)
class AttemptView(run_state.ProcessState):
    """An attempt on this host.

    ``status``, ``running`` and ``log`` are those of its first process here.
    """

    now: float  # UTC seconds by this host's clock
    group: List[str]  # the hosts of its processes in their order, where there are several
    processes: List[ProcessView]
    log: List[Text]


@reads()
def attempt(root: str, run_id: str, number: int, lines: int = 20) -> AttemptView:
    """Return an attempt's processes on this host, with ``lines`` lines of their logs."""
    paths = records.RunPaths(root, records.check_run_id(run_id)).attempt(number)
    if not os.path.isdir(paths.dir):
        raise FileNotFoundError("run {} has no attempt {}".format(run_id, number))
    processes = [_process(root, run_id, number, process, lines) for process in run_state.processes(paths)]
    first = processes[0] if processes else None
    return AttemptView(
        status=first.status if first else None,
        running=first.running if first else False,
        now=time.time(),
        group=_group(paths),
        processes=processes,
        log=first.log if first else [],
    )


def _group(paths: records.AttemptPaths) -> List[str]:
    for process in run_state.processes(paths):
        launched = object_or_empty(records.read_json_or_none(paths.launched(process)))
        if launched.get("group"):
            return [str(host) for host in list_or_empty(launched["group"])]
    return []


def _process(root: str, run_id: str, number: int, process: int, lines: int) -> ProcessView:
    paths = records.RunPaths(root, run_id).attempt(number)
    status = run_state.status_of(paths, process)
    supervised = run_state.launched_running(paths, process)  # before its exit record is read
    ended = records.ProcessExit.read_or_none(paths.exit(process))
    return ProcessView(
        status=status.status,
        running=status.running,
        process=process,
        supervised=supervised,
        job=slurm.described(paths) if process == 0 else None,
        exit=ended,
        log=_tail(paths.log(process), lines) or _tail(os.path.join(paths.dir, slurm.OUTPUT), lines),
    )


def _tail(path: str, lines: int) -> List[str]:
    try:
        with records.open_regular(path) as file:
            file.seek(max(0, os.stat(path).st_size - LOG_BYTES))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []
