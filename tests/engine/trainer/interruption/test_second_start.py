"""Two engines of one attempt, as after a requeue: the older one ends itself, and no checkpoint mixes their lineages."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.local_host import LocalHost
from midstream.migrate.proof import restore_evidence
from midstream_core import records
from midstream_core.listed_checkpoint import ListedCheckpoint
from midstream_core.records import Fence
from midstream_engine.checkpoint.loading.checkpoint_list import list_checkpoints
from midstream_host.runs import standby_state
from simulators.object_stores.bucket import bucket_server
from support.engines.engine_runs import DEADLINE, Engine
from support.local_fleet import Fleet

pytestmark = pytest.mark.drawn

STARTED = {"MIDSTREAM_ATTEMPT": "1", "MIDSTREAM_EPOCH": "1", "MIDSTREAM_TARGET": "lab"}
# A second container of the same shared directory: its pids are others.
CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
FLAGS = ("--trainer.num_train_steps", "100000", "--trainer.checkpointer.keep", "[{every: 5}]")


def wait(look: Callable[[], bool], *engines: Engine) -> None:
    deadline = time.monotonic() + DEADLINE
    while not look():
        assert time.monotonic() < deadline
        for engine in engines:
            assert engine.process.poll() is None, engine.finish()[1]
        time.sleep(0.05)


def committed(paths: records.RunPaths) -> list[ListedCheckpoint]:
    return [checkpoint for checkpoint in list_checkpoints(paths) if checkpoint.complete]


def start_twice(one: Path, two: Path, url: str, extra: dict[str, str]) -> None:
    """Start an attempt on ``one``, then the same one on ``two``; the first is superseded."""
    flags = (*FLAGS, *(("--trainer.checkpointer.base_path", url) if url else ()))
    extra = {**extra, **STARTED}
    with Engine(one, *flags, devices=2, **extra) as first:
        paths = records.RunPaths(str(one), "r", url)
        wait(lambda: any(found.complete and found.step >= 10 for found in list_checkpoints(paths)), first)
        prefix = CONTAINER if one == two else ()
        with Engine(two, *flags, devices=2, prefix=prefix, **extra) as second:
            code, log = first.finish()
            assert code == records.EXIT_FENCED, log
            assert "started again" in log, log
            ended = {each.name for each in committed(records.RunPaths(str(two), "r", url)) if each.start == 1}
            fence = Fence.read(records.RunPaths(str(two), "r", url).fence)
            assert fence.order == (1, 2)
            closed = fence.starts[-1]["step"]
            mine = records.RunPaths(str(two), "r", url)

            def newer() -> list[int]:
                return [each.step for each in committed(mine) if each.start == 2]

            wait(lambda: any(step >= closed + 10 for step in newer()), second)
            status = second.status(1)
            assert status is not None
            assert status.start == 2, "the superseded start writes no status"
            second.process.kill()
            _, log = second.finish()
            assert f"restored step-{closed}-a001" in log
        found = committed(mine)
        accepted = [each for each in found if fence.accepts(each.epoch, each.step, each.start)]
        assert all(each.step <= closed for each in accepted if each.start == 1)
        assert all(each.step > closed for each in accepted if each.start == 2)
        assert len({each.step for each in accepted}) == len(accepted)
        late = [each for each in found if each.start == 1 and each.step > closed]
        assert len(late) <= bool(url), "a bucket has no lock: one save that had looked at the fence may appear later"
        assert not {each.name for each in late} & {each.name for each in accepted}, "it replaces none"
        assert {each.name for each in found if each.start == 1} == ended, "nothing more once it has ended, nor less"
        assert closed in [each.step for each in accepted], "the newer start has not removed what it continued from"


@pytest.mark.timeout(900)
def test_second_start_of_an_attempt_supersedes_the_first(tmp_path: Path) -> None:
    start_twice(tmp_path, tmp_path, "", {})


@pytest.mark.timeout(900)
def test_second_start_in_a_bucket_supersedes_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bucket_server("runs") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        start_twice(tmp_path / "one", tmp_path / "two", "gs://runs/lab", {})


@pytest.mark.timeout(900)
def test_rows_of_a_superseded_start_count_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two starts write to one file; the first is suspended, past its last checkpoint, in the middle of a step."""
    fleet = Fleet(tmp_path, capsys, "lab")
    root = fleet.roots["lab"]
    paths, host = records.RunPaths(str(root), "r"), LocalHost("lab", LocalHostConfig(root=str(root)))
    metrics = Path(paths.attempt(1).metrics)
    flags = (*FLAGS[:3], "[{every: 30}]")  # seldom: it is not suspended while it saves, with the run's lock

    def rows() -> list[dict[str, Any]]:
        return records.parse_metrics(metrics.read_text().splitlines()) if metrics.exists() else []

    with Engine(root, *flags, devices=2, **STARTED) as first:
        wait(lambda: len(rows()) >= 40, first)
        first.process.send_signal(signal.SIGSTOP)
        before = rows()
        with Engine(root, *flags, devices=2, prefix=CONTAINER, **STARTED) as second:
            wait(lambda: rows()[-1]["global_step"] > before[-1]["global_step"] + 20, second)
            first.process.send_signal(signal.SIGCONT)
            code, log = first.finish()
            assert code == records.EXIT_FENCED, log
            second.process.kill()
            second.finish()
    found, fence = rows(), Fence.read(paths.fence)
    late = [row["global_step"] for row in found[len(before) :] if row["start_number"] == 1]
    assert late, "a row of the first start is among those of the second"
    assert fence.order == (1, 2)
    closed = fence.starts[-1]["step"]
    assert before[-1]["global_step"] >= closed, "rows that lead past the checkpoint that the second continues"
    steps = range(found[-1]["global_step"] + 1)
    starts = [1 if step < closed else 2 for step in steps]
    code, out, err = fleet("--metrics", "r", "--json")
    assert code == 0, err
    shown = [row for row in map(json.loads, out.splitlines()) if row["event"] == "metrics"]
    assert [(row["global_step"], row["start_number"]) for row in shown] == list(zip(steps, starts, strict=True))
    times = {row["global_step"]: row["time"] for row in shown}
    read = restore_evidence.losses(host, "r", 1)
    more = host.call(standby_state.rows)(str(root), "r", 1, "metrics.jsonl", 0, 0).rows
    for evidence in (read, more):
        assert {row["global_step"]: row.get("time") for row in evidence} == times
        assert len(evidence) == len(times), "one row of each step"


def test_second_start_on_the_same_machine_is_refused(tmp_path: Path) -> None:
    with Engine(tmp_path, *FLAGS, devices=2, **STARTED) as first:
        first.until(lambda: first.status(1) if (tmp_path / "runs/r/attempts/001/status-0.json").exists() else None)
        with Engine(tmp_path, *FLAGS, devices=2, **STARTED) as second:
            code, log = second.finish()
        assert code == records.EXIT_FAILED, log
        assert f"process {first.process.pid} writes its log and metrics" in log
        status = first.status(1)
        assert status is not None
        assert status.pid == first.process.pid
        assert status.state != records.FAILED
