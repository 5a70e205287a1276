"""What a run measured, and what it printed: the curves and the log of the terminal UI, as lines."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from midstream.errors import Exit, UsageError
from midstream.headless.look import look, unknown_run
from midstream.output import Output
from midstream_engine import records

if TYPE_CHECKING:
    from midstream.fleet.config import Fleet
    from midstream.hosts.open import Hosts
    from midstream.watch.model import RunView

PART = 1 << 22  # bytes of a log in one answer


def metrics(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """One line a step of the spliced curve; with ``--json`` all that was measured."""
    from midstream.hosts.open import Hosts

    hosts = Hosts(fleet)
    try:
        run = _find(fleet, hosts, options.metrics)
    finally:
        hosts.close()
    for row in run.curve:
        words = [f"step {row['global_step']}", f"attempt {row['attempt']}"]
        words += [f"{name} {row[name]:.6g}" for name in ("train/loss", "eval/loss") if row.get(name) is not None]
        output.value({"event": "metrics", "run": run.run_id, **row}, "  ".join(words))
    return Exit.DONE


def log(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """All lines of the newest attempt's log: that of one process, from the host that it is on."""
    from midstream.hosts.open import Hosts
    from midstream.launch.follow import ranks_of

    process: int = options.process
    hosts = Hosts(fleet)
    try:
        run = _find(fleet, hosts, options.log)
        ranks = ranks_of(hosts, run.host, run.run_id, run.attempt)
        if not 0 <= process < len(ranks):
            raise UsageError(f"{run.run_id} has no process {process}", f"it has {len(ranks)}, from 0 on")
        host = hosts.get(ranks[process].host)
        path = records.RunPaths(host.root, run.run_id).attempt(run.attempt).log(process)
        offset = 0
        while (part := host.call("runs.read_lines", path=path, offset=offset, limit=PART))["text"]:
            offset = part["offset"]
            for line in part["text"].splitlines():
                output.value({"event": "log", "run": run.run_id, "attempt": run.attempt, "line": line}, line)
    finally:
        hosts.close()
    return Exit.DONE


def _find(fleet: Fleet, hosts: Hosts, run_id: str) -> RunView:
    snapshot = look(fleet, hosts)
    copies = snapshot.copies(run_id)
    if not copies:
        raise unknown_run(run_id, snapshot)
    return copies[0]
