"""Record and replay of a session: the same snapshots, migrations and screens."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from midstream.errors import UsageError
from midstream.migrate.journal import migration_state
from midstream.tui.app import MidstreamApp
from midstream.tui.recording import Recorder, Replay
from midstream.watch.snapshot_store import SnapshotStore
from midstream_core import records
from support.tui import prepared_migrations
from support.tui.prepared_actions import PreparedActions
from support.tui.screens import screen_text, settle


def beat(at: float) -> dict[str, Any]:
    numbers = {"cpu_used": 0.25, "memory_total": 8, "memory_used": 2, "disk_total": 9, "disk_free": 3}
    return {"event": "beat", "time": at, "accelerators": [], **numbers}


def take_run(store: SnapshotStore, step: int) -> None:
    """Feed the store the probe's actions for a run at ``step``."""
    status = records.Status("training", step, 0, "boot", 1, 1, 5.0, "nano", 1, 1, num_train_steps=100)
    rows = "".join(json.dumps({"global_step": at, "train/loss": 3.0 - at / 100}) + "\n" for at in range(step))
    store.take("here", {"event": "run", "run": "nano", "attempt": 1, "running": True, "status": status.to_json()})
    line = {"event": "metrics", "run": "nano", "attempt": 1, "offset": 0, "inode": 1, "end": len(rows), "text": rows}
    store.take("here", line)
    store.take("here", beat(100.0 + step))


def record(file: Path) -> SnapshotStore:
    recorder = Recorder(str(file))
    store = SnapshotStore({"here": "local", "lost": "ssh"}, listener=recorder.record)
    store.take("here", {"event": "hello", "hostname": "h", "platform": "Linux", "python": "3.11", "cpus": 4})
    take_run(store, 10)
    recorder.migrations((prepared_migrations.migration(),))
    take_run(store, 20)
    store.link("lost", "down", "connection refused")
    recorder.migrations((prepared_migrations.certified(),))
    recorder.migrations((replace(prepared_migrations.certified(), state=migration_state.COMPLETED, finished=True),))
    recorder.close()
    return store


def test_recording_on_a_full_disk_ends_and_the_session_goes_on() -> None:
    recorder = Recorder("/dev/full")
    store = SnapshotStore({"here": "local"}, listener=recorder.record)
    store.take("here", {"event": "hello", "hostname": "h", "platform": "Linux", "python": "3.11", "cpus": 4})
    take_run(store, 10)
    recorder.migrations((prepared_migrations.migration(),))
    recorder.close()
    assert len(store.snapshot().runs) == 1
    assert store.snapshot().hosts[0].link == "live"
    assert recorder.problem == "/dev/full is not complete: No space left on device"


def test_replay_ends_with_recorded_snapshot(tmp_path: Path) -> None:
    store = record(tmp_path / "session")
    replay = Replay.load(str(tmp_path / "session"))
    assert replay.snapshot().hosts == ()
    replay.advance(float("inf"))
    assert replay.ended
    before, after = store.snapshot(), replay.snapshot()
    assert after.runs == before.runs
    assert [replace(host, last_seen=0, machine=None) for host in after.hosts] == [
        replace(host, last_seen=0, machine=None) for host in before.hosts
    ]
    assert replay.migrations() == (
        replace(prepared_migrations.certified(), state=migration_state.COMPLETED, finished=True),
    )


def test_replay_keeps_recorded_pace(tmp_path: Path) -> None:
    record(tmp_path / "session")
    entries = [json.loads(line) for line in (tmp_path / "session").read_text().splitlines()]
    for number, entry in enumerate(entries):
        entry["at"] = 1000.0 + number
    replay = Replay(entries)
    steps = []
    for number in range(len(entries)):
        replay.advance(1000.0 + number)
        steps.append(replay.snapshot().runs[0].step if replay.snapshot().runs else None)
    assert [step for before, step in zip([None, *steps], steps, strict=False) if step != before] == [10, 20]
    assert replay.clock() == 1000.0 + len(entries) - 1


async def test_replay_of_session_is_shown_on_screen(tmp_path: Path) -> None:
    record(tmp_path / "session")
    replay = Replay.load(str(tmp_path / "session"))
    app = MidstreamApp(replay, replay.actions, readonly=True, clock=replay.clock)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        replay.advance(float("inf"))
        app.publish()
        await settle(pilot, lambda: "20/100" in screen_text(app) and bool(app.screen_state.migrations))
        await pilot.press("3", "enter")
        await settle(pilot, lambda: "✓ reference losses" in screen_text(app))
        await pilot.press("r")
        await settle(pilot)
        assert "--readonly" in screen_text(app), "a recording is read-only"


def test_replay_refuses_a_file_that_is_no_recording(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("{}\n")
    for name in ("other", "missing"):
        with pytest.raises(UsageError):
            Replay.load(str(tmp_path / name))
    with pytest.raises(UsageError):
        Recorder(str(tmp_path / "missing" / "file"))


def test_replay_of_killed_session_shows_its_last_snapshot(tmp_path: Path) -> None:
    record(tmp_path / "session")
    text = (tmp_path / "session").read_text()
    (tmp_path / "session").write_text(text[: int(len(text) * 0.9)])
    replay = Replay.load(str(tmp_path / "session"))
    replay.advance(float("inf"))
    assert replay.snapshot().runs[0].step == 20


def test_recorder_wraps_actions(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path / "session"))
    actions = PreparedActions(prepared_migrations.migration())
    wrapped = recorder.wrap(actions)
    assert wrapped.targets() == actions.targets()
    assert wrapped.migrations() == actions.views
    recorder.close()
    assert '"do": "migration"' in (tmp_path / "session").read_text()
