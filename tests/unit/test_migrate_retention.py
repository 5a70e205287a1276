"""Plan and preflight of a run whose retention removes checkpoints while they are looked at."""

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
from midstream.fleet.fleet import Fleet, LocalHost
from midstream.hosts.host_pool import Hosts
from midstream.migrate.checkpoint_store import checkpoint_store_of
from midstream.migrate.model import Request
from midstream.migrate.planning import preflight
from midstream.migrate.planning.plan import make_plan
from midstream.watch.watcher import look_once
from midstream_engine import records
from support.run_directory import RunDirectory

CONFIG = "model: {type: gpt2}\ntrainer: {train_batch_size: 32, num_train_steps: 100000}\n"


def save(run: RunDirectory, step: int) -> str:
    """A checkpoint as an engine commits it: the manifest last."""
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
    """Save and delete without pause, as retention does: the directory is moved away first. Set once it has begun."""
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
def fleet(tmp_path: Path) -> Iterator[tuple[Fleet, Hosts]]:
    fleet = Fleet({name: LocalHost(root=str(tmp_path / name), devices=2) for name in ("a", "b")})
    hosts = Hosts(fleet)
    yield fleet, hosts
    hosts.close()


def test_a_checkpoint_that_retention_removes_meanwhile_refuses_no_move(fleet: tuple[Fleet, Hosts], tmp_path: Path):
    run = RunDirectory(tmp_path / "a", "r")
    Path(run.paths.config).write_text(CONFIG)
    run.status(1, records.TRAINING, 30)
    run.fence(1, "a")
    with retention(run):
        for _ in range(3):
            plan = make_plan(*fleet, look_once(*fleet), Request("r", "b", mode="cold"))
            assert plan.checkpoint == "now"
            checks = {check.name: check for check in preflight.run_checks(*fleet, plan)}
            assert checks["divisibility"].state == preflight.PASS, checks["divisibility"]
            assert not any("Errno" in check.detail for check in checks.values())


def test_the_newest_state_is_read_while_checkpoints_come_and_go(fleet: tuple[Fleet, Hosts], tmp_path: Path):
    run = RunDirectory(tmp_path / "a", "r")
    run.status(1, records.TRAINING, 30)
    run.fence(1, "a")
    shelf = checkpoint_store_of(fleet[0], fleet[1].get("a"), "r", "")
    with retention(run):
        for _ in range(10):
            found = shelf.newest_state()
            assert found is not None
            assert records.Manifest.from_json(found["manifest"]).name == found["name"]


def test_a_checkpoint_without_its_train_json_is_damaged_and_not_looked_for_again(
    fleet: tuple[Fleet, Hosts], tmp_path: Path
):
    run = RunDirectory(tmp_path / "a", "r")
    run.status(1, records.TRAINING, 30)
    run.fence(1, "a")
    run.checkpoint(20)
    with pytest.raises(RemoteError, match=r"train\.json is missing"):
        checkpoint_store_of(fleet[0], fleet[1].get("a"), "r", "").newest_state()
