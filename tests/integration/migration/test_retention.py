"""Plan and preflight while retention removes checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream.errors import RemoteError
from midstream.fleet.fleet import Fleet, LocalHostConfig
from midstream.hosts.host_pool import HostPool
from midstream.migrate.checkpoint_store import checkpoint_store_of
from midstream.migrate.journal.request import Request
from midstream.migrate.planning import preflight
from midstream.migrate.planning.planner import make_plan
from midstream.watch.watcher import take_snapshot
from midstream_core import records
from support.run_directory import RunDirectory

CONFIG = "model: {type: gpt2}\ntrainer: {train_batch_size: 32, num_train_steps: 100000}\n"


def save(run: RunDirectory, step: int) -> str:
    """Write a checkpoint as an engine commits it: the manifest last."""
    name = run.checkpoint(step, complete=False)
    directory = Path(run.paths.checkpoint(name))
    (directory / records.TRAIN).write_text(json.dumps({"state": {"data_digest": ""}}))
    array = records.ArrayEntry("w", ["embed"], [64], "float32", [1], ["a"]).to_json()
    run.checkpoint(step)
    manifest = records.Manifest.read(str(directory / records.MANIFEST))
    dataclasses.replace(manifest, arrays=[array]).write(str(directory / records.MANIFEST), durable=False)
    return name


@contextlib.contextmanager
def retention(run: RunDirectory) -> Iterator[threading.Event]:
    """Save and delete without pause; yields an event that is set at the sixth save."""
    over, begun = threading.Event(), threading.Event()

    def work() -> None:
        old, step = save(run, 1), 1
        while not over.is_set():
            step += 1
            new = save(run, step)
            trash = Path(run.paths.checkpoints, f".trash-{old}")
            os.rename(run.paths.checkpoint(old), trash)
            shutil.rmtree(trash)
            old = new
            if step > 5:
                begun.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert begun.wait(30)
        yield begun
    finally:
        over.set()
        thread.join()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[tuple[Fleet, HostPool]]:
    fleet = Fleet({name: LocalHostConfig(root=str(tmp_path / name), devices=2) for name in ("a", "b")})
    hosts = HostPool(fleet)
    yield fleet, hosts
    hosts.close()


def test_plan_survives_checkpoints_removed_by_retention(fleet: tuple[Fleet, HostPool], tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "a", "r")
    Path(run.paths.config).write_text(CONFIG)
    run.status(1, records.TRAINING, 30)
    run.fence(1, "a")
    with retention(run):
        for _ in range(3):
            plan = make_plan(fleet[1], take_snapshot(fleet[1]), Request("r", "b", mode="cold"))
            assert plan.checkpoint == "now"
            checks = {check.name: check for check in preflight.run_checks(fleet[1], plan)}
            assert checks["divisibility"].state == preflight.PASS, checks["divisibility"]
            assert not any("Errno" in check.detail for check in checks.values())


def test_newest_state_is_read_during_retention(fleet: tuple[Fleet, HostPool], tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "a", "r")
    run.status(1, records.TRAINING, 30)
    run.fence(1, "a")
    store = checkpoint_store_of(fleet[0], fleet[1].get("a"), "r", "")
    with retention(run):
        for _ in range(10):
            found = store.newest_state()
            assert found is not None
            assert found.manifest.name == found.name


def test_checkpoint_without_train_json_is_damaged(fleet: tuple[Fleet, HostPool], tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "a", "r")
    run.status(1, records.TRAINING, 30)
    run.fence(1, "a")
    run.checkpoint(20)
    with pytest.raises(RemoteError, match=r"train\.json is missing"):
        checkpoint_store_of(fleet[0], fleet[1].get("a"), "r", "").newest_state()
