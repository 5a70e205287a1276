"""The training loop's saver: one save at a time beside the training, reported failures, no loss."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from midstream_core import records
from midstream_core.attempt.save_fence import FenceRejectedError, seal
from midstream_core.attempt.status_file import StatusFile
from midstream_core.records import RunPaths
from midstream_engine.checkpoint.loading.checkpoint_list import list_checkpoints
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_engine.checkpoint.stores.directory_objects import DirectoryObjects
from midstream_engine.computation.programs import compile_reference_losses
from midstream_engine.computation.reference_losses import ReferenceLosses
from midstream_engine.computation.setup import Setup, prepare
from midstream_engine.computation.train_state import TrainState
from midstream_engine.config import load_config
from midstream_engine.data.errors import DataError
from midstream_engine.loop import copy_memory, saving
from midstream_engine.loop.saving import NotSavedError, Saver
from midstream_engine.runtime.attempt_record import open_attempt
from support.engines.engine_runs import Engine
from support.paths import CONFIGS

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]

Parts = tuple[Setup, ReferenceLosses, TrainState]
SaverParts = tuple[Saver, StatusFile, RunPaths]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    root = str(tmp_path_factory.mktemp("root"))
    flags = ["--trainer.checkpointer.save_interval", "10s", "--trainer.checkpointer.keep", "[{every: 100}]"]
    loaded = load_config(["--config_path", str(CONFIGS / "gpt2_tiny.yaml"), *flags])
    setup = prepare(loaded.config, root, None, jax.devices()[:2])
    return setup, compile_reference_losses(setup), setup.fresh_state()


class PausedWrites:
    """Directory stores: their writes wait until they are released, or fail.

    ``go`` releases those of the first save, ``next`` those of later ones, which by themselves do not wait.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.began, self.next = threading.Event(), threading.Event(), threading.Event()
        self.next.set()
        self.error: OSError | None = None
        first: list[str] = []  # where the first save writes
        original = DirectoryObjects.write

        def write(store: DirectoryObjects, path: str, blocks: Any) -> None:
            self.began.set()
            first.append(store.where)
            assert (self.go if store.where == first[0] else self.next).wait(60)
            if self.error is not None:
                raise self.error
            original(store, path, blocks)

        monkeypatch.setattr(DirectoryObjects, "write", write)


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> PausedWrites:
    return PausedWrites(monkeypatch)


@pytest.fixture
def saver_parts(parts: Parts, tmp_path: Path) -> Iterator[SaverParts]:
    setup, reference_losses, _ = parts
    attempt = open_attempt(str(tmp_path), "r", {})
    status = StatusFile(attempt.files.status(), run_id="r", attempt=1, epoch=1, num_train_steps=9)
    status.update(state=records.TRAINING)
    saver = Saver(setup, attempt, status, reference_losses, 0.0)
    yield saver, status, attempt.paths
    saver.close()
    status.close()


def places_of(tree: Any) -> set[int]:
    """Addresses of the parts of arrays."""
    arrays = (leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array))
    return {shard.data.unsafe_buffer_pointer() for array in arrays for shard in array.addressable_shards}


def arrays_of(paths: RunPaths, name: str) -> dict[str, str]:
    """Digests of the objects that hold arrays, by path; all of them are verified."""
    verify_checkpoint(paths.checkpoint(name))
    manifest = json.loads(Path(paths.checkpoint(name), "manifest.json").read_text())
    return {each["path"]: each["sha256"] for each in manifest["objects"] if each["path"] != "train.json"}


def until(look: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_saver_does_not_block_loop_and_status_is_correct(
    parts: Parts, saver_parts: SaverParts, paused: PausedWrites
) -> None:
    _, _, state = parts
    saver, status, paths = saver_parts
    callbacks = []
    saver.save(state, 3, "requested", callback=lambda: callbacks.append(status.value.checkpoint))
    assert paused.began.wait(60)
    on_disk = records.Status.read(paths.attempt(1).status())
    assert (on_disk.state, on_disk.checkpoint) == (records.TRAINING, None)  # not saving: the loop does not wait
    saver.poll()
    assert callbacks == []
    paused.go.set()
    until(lambda: saver.poll() or callbacks)
    assert callbacks == ["step-3-a001"]  # after the commit, on the loop's thread
    on_disk = records.Status.read(paths.attempt(1).status())
    assert on_disk.checkpoint == "step-3-a001"
    assert verify_checkpoint(paths.checkpoint("step-3-a001")).root_digest == on_disk.root_digest
    saver.save(state, 3, "requested", callback=lambda: callbacks.append("again"))  # it is there
    assert callbacks[1:] == ["again"]


def test_saver_defers_temporary_and_awaits_permanent_save(
    parts: Parts, saver_parts: SaverParts, paused: PausedWrites, caplog: pytest.LogCaptureFixture
) -> None:
    _, _, state = parts
    saver, _, paths = saver_parts
    now = time.monotonic()
    assert saver.due(3, now)
    saver.save(state, 3, "checkpointer")
    assert [saver.due(step, now + 60) for step in (3, 4, 5)] == [False] * 3
    assert [record.message for record in caplog.records if "no temporary checkpoint" in record.message] == [
        "step 4: no temporary checkpoint while step-3 is still being written (saves take longer than "
        "trainer.checkpointer.save_interval)"
    ]
    assert saver.due(100, now + 60)
    paused.next.clear()
    threading.Timer(0.2, paused.go.set).start()
    saver.save(state, 100, "checkpointer")  # waits for step 3
    assert next(found.name for found in list_checkpoints(paths) if found.complete) == "step-3-a001"
    paused.next.set()
    saver.close()
    assert [found.name for found in list_checkpoints(paths)] == ["step-100-a001"]  # step 3 was temporary


def test_saver_without_room_for_a_copy_writes_before_it_returns(
    parts: Parts,
    saver_parts: SaverParts,
    paused: PausedWrites,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The next update is given the memory of the state."""
    _, _, state = parts
    saver, status, paths = saver_parts
    monkeypatch.setattr(copy_memory, "ALWAYS_COPIED", 0)
    monkeypatch.setattr(copy_memory, "reusable_bytes", lambda: 0)  # what earlier tests have left
    monkeypatch.setattr(saving, "memory_shortage", partial(copy_memory.memory_shortage, available=lambda: 0))
    spent = jax.tree.map(jnp.copy, state)
    callbacks = []
    threading.Timer(0.2, paused.go.set).start()
    saver.save(spent, 3, "requested", callback=lambda: callbacks.append(3))
    assert paused.go.is_set()
    overwrite = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 0 + 7, tree), donate_argnums=0)
    places = places_of(spent.model)
    overwritten = overwrite(spent.model)
    assert places_of(overwritten) == places  # nothing holds the memory any more, or it would need that of a copy
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(spent.model))
    assert not saver.busy
    assert callbacks == []  # the loop calls it at the boundary
    saver.poll()
    assert (callbacks, status.value.checkpoint) == ([3], "step-3-a001")
    found = [record.message for record in caplog.records if "waits" in record.message]
    assert len(found) == 1
    assert found[0].startswith("step 3: training waits until the state is written: a copy of it needs 0.")
    assert found[0].endswith(" GiB of memory, 0.00 GiB are available")
    written = arrays_of(paths, "step-3-a001")
    saver.save(state, 4, "stop", last=True)
    assert written == arrays_of(paths, "step-4-a001")
    assert written


def test_saver_final_save_is_on_disk_with_the_one_before(
    parts: Parts, saver_parts: SaverParts, paused: PausedWrites
) -> None:
    _, _, state = parts
    saver, status, paths = saver_parts
    saver.save(state, 100, "checkpointer")
    threading.Timer(0.2, paused.go.set).start()
    saver.save(state, 101, "stop", last=True)
    assert [found.complete for found in list_checkpoints(paths)] == [True, True]
    assert status.value.checkpoint == "step-101-a001"


def test_state_is_saved_where_the_next_batch_cannot_be_read(
    parts: Parts, saver_parts: SaverParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference losses are of that batch."""
    setup, _, state = parts
    saver, _, paths = saver_parts

    def batch(index: int) -> None:
        raise DataError(f"batch {index}: the bucket does not answer")

    def losses(step: int) -> Any:
        verify_checkpoint(paths.checkpoint(f"step-{step}-a001"))
        return json.loads(Path(paths.checkpoint(f"step-{step}-a001"), "train.json").read_text())["reference_losses"]

    with monkeypatch.context() as patch:
        patch.setattr(type(setup.batches), "batch", lambda _, index: batch(index))
        saver.save(state, 3, "checkpointer")
        saver.save(state, 4, "stop", last=True)
        assert losses(4) is None
    saver.save(state, 5, "the next batch cannot be read", last=True, no_data=True)
    assert losses(5) is None
    saver.save(state, 6, "stop", last=True)
    assert losses(6) is not None


def test_saver_reports_failed_save_at_boundary_and_retries(
    parts: Parts, saver_parts: SaverParts, paused: PausedWrites, caplog: pytest.LogCaptureFixture
) -> None:
    _, _, state = parts
    saver, status, paths = saver_parts
    callbacks = []
    paused.error = OSError(5, "Input/output error")
    paused.go.set()
    saver.save(state, 3, "requested", callback=lambda: callbacks.append(3))
    message = f"step 3 not saved: {paths.checkpoint('step-3-a001')}: cannot be written"
    until(lambda: saver.poll() or status.value.message)
    assert message in status.value.message
    assert message in records.Status.read(paths.attempt(1).status()).message
    assert [record.levelname for record in caplog.records if message in record.message] == ["ERROR"]
    assert (callbacks, status.value.checkpoint, status.value.state) == ([], None, records.TRAINING)
    with pytest.raises(NotSavedError, match="step 4 not saved"):
        saver.save(state, 4, "stop", last=True)
    paused.error = None
    saver.save(state, 3, "requested", last=True)
    assert (status.value.checkpoint, status.value.message) == ("step-3-a001", "")


def test_saver_refuses_state_that_is_not_finite(parts: Parts, saver_parts: SaverParts) -> None:
    """Also one that came from no update, such as an imported model."""
    _, _, state = parts
    saver, status, paths = saver_parts
    with pytest.raises(NotSavedError, match=r"step 2 not saved: the state is not finite: NaN in w, since step 1$"):
        saver.save(state, 2, "requested", not_finite="NaN in w, since step 1")
    broken = dataclasses.replace(state, model=jax.tree.map(lambda leaf: leaf.at[0].set(jnp.nan), state.model))
    with pytest.raises(NotSavedError, match="step 3 not saved: the state is not finite: NaN in model/"):
        saver.save(broken, 3, "requested")
    assert "NaN in model/" in status.value.message
    saver.save(state, 4, "stop", last=True)
    assert ([found.name for found in list_checkpoints(paths)], status.value.message) == (["step-4-a001"], "")


def test_saver_fenced_during_write_exits_at_next_boundary(
    parts: Parts, saver_parts: SaverParts, paused: PausedWrites
) -> None:
    _, _, state = parts
    saver, _, paths = saver_parts
    saver.save(state, 3, "checkpointer")
    assert paused.began.wait(60)
    seal(paths, epoch=2, owner="large", step=2)
    paused.go.set()
    until(lambda: saver._task.done)
    with pytest.raises(FenceRejectedError, match="owned by large"):
        saver.poll()
    assert list_checkpoints(paths) == []


@pytest.mark.drawn
def test_attempt_survives_failed_save_and_sigterm(tmp_path: Path) -> None:
    steps = ["--trainer.num_train_steps", "100000", "--trainer.checkpointer.keep", "[]"]
    with Engine(tmp_path, *steps) as engine:
        engine.until(engine.has_trained(1, 2))
        os.rmdir(engine.paths.checkpoints)
        Path(engine.paths.checkpoints).write_text("in the way")
        engine.process.send_signal(signal.SIGUSR1)
        failed = engine.until(lambda: ((s := engine.status(1)) and s.message and s) or None)
        assert "not saved" in failed.message
        assert failed.checkpoint is None
        engine.until(engine.has_trained(1, failed.step + 2))  # training goes on
        os.unlink(engine.paths.checkpoints)
        os.mkdir(engine.paths.checkpoints)
        engine.process.send_signal(signal.SIGUSR1)
        time.sleep(random.random() / 10)
        engine.process.send_signal(signal.SIGTERM)
        code, log = engine.finish()
    assert code == 0, log
    status = engine.status(1)
    assert status is not None
    said = f"stopped by SIGTERM at step {status.step}, saved"
    assert (status.state, status.checkpoint, status.message) == ("stopped", f"step-{status.step}-a001", said)
    (newest,) = [found for found in list_checkpoints(engine.paths) if found.step == status.step]
    assert newest.complete
    assert verify_checkpoint(engine.paths.checkpoint(newest.name)).root_digest == status.root_digest
