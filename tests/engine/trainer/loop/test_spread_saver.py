"""Savers of two processes without a shared file system."""

from __future__ import annotations

import dataclasses
import errno
import time
from pathlib import Path

import jax
import pytest

from midstream_core import records
from midstream_core.attempt.status_file import StatusFile
from midstream_core.records import MANIFEST, SHARE
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_engine.checkpoint.stores.directory_objects import DirectoryObjects
from midstream_engine.computation.programs import compile_reference_losses
from midstream_engine.computation.setup import prepare
from midstream_engine.config import load_config
from midstream_engine.loop.saving import Saver
from midstream_engine.processes.coordinator_client import CoordinatorClient
from midstream_engine.processes.rendezvous import Processes
from midstream_engine.processes.shared_file_systems import SharedFileSystems
from midstream_engine.runtime.attempt_record import AttemptRecord, open_attempt
from support.checkpoints.spread_hosts import Hosts
from support.paths import CONFIGS

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]


def test_share_is_completed_once_older_ones_made_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of host b is full until it removes its share of the older checkpoint."""
    flags = ["--trainer.checkpointer.save_interval", "10s", "--trainer.checkpointer.keep", "[{every: 100}]"]
    config = load_config(["--config_path", str(CONFIGS / "gpt2_tiny.yaml"), *flags]).config
    setup = prepare(config, str(tmp_path / "data"), None, jax.devices()[:2])
    reference_losses, state = compile_reference_losses(setup), setup.fresh_state()
    hosts, commit = Hosts(tmp_path), DirectoryObjects.commit
    attempts: dict[int, AttemptRecord] = {}

    def save(client: CoordinatorClient, systems: SharedFileSystems) -> list[str]:
        opened = open_attempt(str(tmp_path / "ab"[client.process]), "run", {})
        connected = Processes(client.process, 2, "ab"[client.process], client)
        attempt = dataclasses.replace(opened, processes=connected, file_systems=systems)
        attempts[client.process] = attempt
        status = StatusFile(attempt.files.status(client.process), run_id="run", attempt=1, epoch=1, num_train_steps=9)
        status.update(state=records.TRAINING)
        saver = Saver(setup, attempt, status, reference_losses, 0.0)
        saved: list[str] = []
        for step in (3, 4):
            saver.save(state, step, "requested")
            deadline = time.monotonic() + 120
            while saver.busy:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            saver.poll()
            saved.append(status.value.checkpoint or "")
        saver.close()
        status.close()
        return saved

    def full(store: DirectoryObjects, path: str, data: bytes) -> None:
        if store.where == hosts.paths("b").checkpoint("step-4-a001"):
            refused.append(Path(hosts.paths("b").checkpoint("step-3-a001")).exists())
            if refused[-1]:
                raise OSError(errno.ENOSPC, "No space left on device")
        commit(store, path, data)

    begun = Path(hosts.paths("b").checkpoint(".trash-step-1-a001"))  # by a process that was killed
    (begun / "arrays").mkdir(parents=True)
    refused: list[bool] = []
    monkeypatch.setattr(DirectoryObjects, "commit", full)
    assert hosts.together("ab", save) == [["step-3-a001", "step-4-a001"]] * 2
    assert refused == [True, False]
    assert not begun.exists()
    for host in "ab":
        directory = Path(hosts.paths(host).checkpoint("step-4-a001"))
        assert (directory / MANIFEST).exists()
        assert not (directory / SHARE).exists()
        assert verify_checkpoint(str(directory), deep=True).flaws == []
        assert not Path(hosts.paths(host).checkpoint("step-3-a001")).exists()
