"""What a run measured, and what it printed: the curves and the log of the terminal UI, as lines."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from midstream.errors import Exit, UsageError
from midstream.headless.status import look, unknown_run
from midstream.output import Output, table
from midstream_engine import records

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import Hosts
    from midstream.watch.snapshot import RunView, Snapshot


def metrics(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """One line a step of the spliced curve; with ``--json`` all that was measured. Of several runs their losses side by
    side."""
    from midstream.hosts.host_pool import Hosts

    names = list(dict.fromkeys(options.metrics.split(",")))
    hosts = Hosts(fleet)
    try:
        snapshot = look(fleet, hosts)
        runs = [_of(snapshot, name) for name in names]
    finally:
        hosts.close()
    if len(runs) > 1 and not output.as_json:
        output.value({}, table([("STEP", *names), *_side_by_side(runs)]))
        return Exit.DONE
    for run in runs:
        _one(run, output)
    return Exit.DONE


def _side_by_side(runs: Sequence[RunView]) -> list[tuple[str, ...]]:
    """A line for each step at which one of them has a loss."""
    losses = [{row["global_step"]: row["train/loss"] for row in run.curve if "train/loss" in row} for run in runs]
    return [(str(step), *(_number(known.get(step)) for known in losses)) for step in sorted(set[int]().union(*losses))]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _one(run: RunView, output: Output) -> None:
    for row in run.curve:
        words = [f"step {row['global_step']}", f"attempt {row['attempt']}"]
        words += [f"{name} {row[name]:.6g}" for name in ("train/loss", "eval/loss") if row.get(name) is not None]
        output.value({"event": "metrics", "run": run.run_id, **row}, "  ".join(words))


def log(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """All lines of the newest attempt's log: that of one process, from the host that it is on."""
    from midstream.hosts.host_pool import Hosts
    from midstream.launch.attempt_monitor import ranks_of
    from midstream.watch.log_file import log_parts

    process: int = options.process
    hosts = Hosts(fleet)
    try:
        run = find_run(fleet, hosts, options.log)
        ranks = ranks_of(hosts, run.host, run.run_id, run.attempt)
        if not 0 <= process < len(ranks):
            raise UsageError(f"{run.run_id} has no process {process}", f"it has {len(ranks)}, from 0 on")
        host = hosts.get(ranks[process].host)
        path = records.RunPaths(host.root, run.run_id).attempt(run.attempt).log(process)
        for part in log_parts(host, path):
            for line in part.removesuffix("\n").split("\n"):
                value = {"event": "log", "run": run.run_id, "attempt": run.attempt, "line": line}
                output.value(value, [line.removesuffix("\r")])
    finally:
        hosts.close()
    return Exit.DONE


def find_run(fleet: Fleet, hosts: Hosts, run_id: str) -> RunView:
    """The copy of the run with the highest fence epoch. UsageError where no host knows it."""
    return _of(look(fleet, hosts), run_id)


def _of(snapshot: Snapshot, run_id: str) -> RunView:
    copies = snapshot.copies(run_id)
    if not copies:
        raise unknown_run(run_id, snapshot)
    return copies[0]
