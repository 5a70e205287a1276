"""Rows of two processes of one standby attempt: those of the newest count."""

from __future__ import annotations

import json
from pathlib import Path

from midstream_core import records
from midstream_core.attempt import replay_file
from midstream_engine.tracking.metrics_file import MetricsFile
from midstream_host.runs import standby_state
from support.run_directory import RunDirectory

REPLAY = "replay.jsonl"


def test_rows_of_two_processes_of_a_standby_do_not_mix(run: RunDirectory) -> None:
    """On the old code both appended to one file: the losses of the one were compared as those of the other."""
    run.status(2, records.REPLAYING, 0)
    files = run.attempt(2)
    first = MetricsFile(replay_file.create(files))

    def write(file: MetricsFile, step: int, loss: float) -> None:
        file.write({"global_step": step, "train/loss": loss, "batch_digest": "ab"})

    def read(offset: int, start: int) -> standby_state.NewRows:
        return standby_state.rows(str(Path(run.paths.root)), "run", 2, REPLAY, offset, 0, start)

    def losses(found: standby_state.NewRows) -> list[tuple[int, float]]:
        return [(row["global_step"], row["train/loss"]) for row in found.rows]

    for step in (4, 5, 6):
        write(first, step, 1.0)
    seen = read(0, 0)
    assert (losses(seen), seen.start) == ([(4, 1.0), (5, 1.0), (6, 1.0)], 1)
    second = MetricsFile(replay_file.create(files))  # the job was requeued, and the first process is suspended
    write(second, 4, 2.0)
    write(first, 7, 1.0)  # it was resumed
    now = read(seen.offset, seen.start)
    assert (losses(now), now.start) == ([(4, 2.0)], 2), "from the beginning, and none of the first process"
    write(second, 5, 2.0)
    write(first, 8, 1.0)
    more = read(now.offset, now.start)
    assert (losses(more), more.start) == ([(5, 2.0)], 2)
    assert losses(read(0, 0)) == [(4, 2.0), (5, 2.0)], "as a certificate reads them"
    first.close()
    second.close()
    own = [json.loads(line)["global_step"] for line in Path(files.replay).read_text().splitlines()]
    assert own == [4, 5, 6, 7, 8], "each process has its own rows for its promotion"
