"""Saving behind the training loop: the snapshot stands apart, one save is in flight, failures are reported, nothing is
lost."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from midstream_engine import records
from midstream_engine.checkpoint.loading.list_checkpoints import list_checkpoints
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_engine.checkpoint.saving.background_task import Background
from midstream_engine.checkpoint.saving.save import PendingSave, begin_save
from midstream_engine.checkpoint.saving.save_fence import Fenced, seal
from midstream_engine.checkpoint.saving.snapshot import CHUNK, snapshot
from midstream_engine.checkpoint.stores.directory import Directory
from midstream_engine.config import load_config
from midstream_engine.records import RunPaths, first_fence
from midstream_engine.trainer.attempt.attempt_record import open_attempt
from midstream_engine.trainer.attempt.reference_losses import ReferenceLosses
from midstream_engine.trainer.attempt.setup import Setup, prepare
from midstream_engine.trainer.attempt.status_file import StatusFile
from midstream_engine.trainer.loop.saving import NotSaved, Saver
from midstream_engine.trainer.loop.train_state import TrainState
from midstream_engine.trainer.runtime.programs import compile_reference_losses
from support.checkpoint_states import PROVENANCE, REFERENCE_LOSSES, STATE, save
from support.engine_runs import CONFIGS, Engine

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 is giving up.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]


@pytest.fixture
def paths(tmp_path) -> RunPaths:
    return RunPaths(str(tmp_path), "run")


def begin(paths: RunPaths, tree: Any, step: int = 7, **more: Any) -> PendingSave:
    return begin_save(
        paths,
        tree,
        step=step,
        attempt=1,
        epoch=1,
        state=STATE,
        provenance=PROVENANCE,
        reference_losses=REFERENCE_LOSSES,
        **more,
    )


# ----------------------------------------------------------------------------------------------------- the snapshot


def test_what_the_state_becomes_after_the_snapshot_is_not_saved(paths, tmp_path):
    """Large and small, on several devices, donated; and an array of numpy that is written to."""
    random = np.random.default_rng(0)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    original = {
        "large": random.standard_normal((2 * CHUNK // 1024, 1024)).astype(np.float32),
        "small": random.standard_normal((8, 3)).astype(np.float32),
        "numpy": random.standard_normal((400, 1000)).astype(np.float32),
    }
    expected = save(RunPaths(str(tmp_path / "expected"), "run"), original).root_digest
    tree = {name: jax.device_put(original[name].copy(), sharding) for name in ("large", "small")}
    tree["numpy"] = original["numpy"].copy()
    pending = begin(paths, tree)
    update = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 0 - 1, tree), donate_argnums=0)
    for _ in range(3):
        arrays = jax.block_until_ready(update({name: tree[name] for name in ("large", "small")}))
        tree |= arrays
    tree["numpy"][:] = 0
    assert pending.finish().root_digest == expected


def test_a_fence_that_moves_while_a_save_is_written_is_seen_at_its_commit(paths):
    os.makedirs(paths.dir)
    first_fence("small").write(paths.fence)
    pending = begin(paths, {"x": np.zeros(3, np.float32)}, step=11)
    seal(paths, epoch=2, holder="large", step=10)
    with pytest.raises(Fenced, match="held by large under epoch 2, sealed at step 10"):
        pending.finish()
    assert list_checkpoints(paths) == []


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def quick_collections():
    """Collections look at what the test makes, not at all that tests before it have left in this process."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("quick_collections")
def test_memory_is_back_at_its_level_after_each_of_50_saves(paths):
    """The state is 12 MiB: one that was kept would be seen at once, a fifth of one in the end."""
    state = {"x": jnp.full((12 << 10, 256), 1, jnp.float32)}
    size = sum(leaf.nbytes for leaf in state.values())
    behind, levels = Background[int]("test"), []
    for step in range(50):
        pending = begin(paths, state, step)
        behind.start(step, lambda pending=pending: pending.finish() and None)
        assert behind.collect() == (step, None)
        shutil.rmtree(paths.checkpoint(f"step-{step}-a001"))
        gc.collect()
        levels.append(resident())
    behind.close()
    settled = levels[4]  # threads and their buffers are there from the first ones on
    print("MiB:", [level >> 20 for level in levels])
    assert max(levels[5:]) - settled < 0.5 * size
    assert levels[-1] - settled < 0.2 * size


def test_the_memory_of_one_snapshot_serves_the_next_and_that_of_a_second_at_a_time_is_given_back(paths):
    state = {"x": np.ones((64 << 20) // 4, np.float32)}
    before = resident()
    first, second = (begin(paths, state, step) for step in (1, 2))
    assert resident() - before > 112 << 20
    for pending in (first, second):  # both are still referred to when they are finished
        pending.finish()
    gc.collect()
    assert resident() - before < 88 << 20
    places = []
    for _ in range(2):
        ((_, data),) = snapshot(state, copy=True)[0].pieces
        places.append(data.ctypes.data)
        del data
    assert places[0] == places[1]
    assert verify_checkpoint(paths.checkpoint("step-2-a001"), deep=True).sound


# ---------------------------------------------------------------------------------------- the training loop's saver


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> tuple[Setup, ReferenceLosses, TrainState]:
    root = str(tmp_path_factory.mktemp("root"))
    flags = ["--trainer.checkpointer.save_interval", "10s", "--trainer.checkpointer.keep", "[{every: 100}]"]
    loaded = load_config(["--config_path", str(CONFIGS / "gpt2_tiny.yaml"), *flags])
    setup = prepare(loaded.config, root, None, jax.devices()[:2])
    return setup, compile_reference_losses(setup), setup.fresh_state()


class Held:
    """Directories whose writes wait until they are let go, or fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.go, self.began, self.error = threading.Event(), threading.Event(), None
        original = Directory.write

        def write(store: Directory, path: str, blocks: Any) -> None:
            self.began.set()
            assert self.go.wait(60)
            if self.error is not None:
                raise self.error
            original(store, path, blocks)

        monkeypatch.setattr(Directory, "write", write)


@pytest.fixture
def held(monkeypatch) -> Held:
    return Held(monkeypatch)


@pytest.fixture
def saver(parts, tmp_path) -> Iterator[tuple[Saver, StatusFile, RunPaths]]:
    setup, reference_losses, _ = parts
    attempt = open_attempt(str(tmp_path), "r", {})
    status = StatusFile(attempt.files.status(), run_id="r", attempt=1, epoch=1, num_train_steps=9)
    status.update(state=records.TRAINING)
    saver = Saver(setup, attempt, status, reference_losses, 0.0)
    yield saver, status, attempt.paths
    saver.close()
    status.close()


def until(look: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_loop_goes_on_while_a_save_is_written_and_the_status_is_honest(parts, saver, held):
    _, _, state = parts
    saver, status, paths = saver
    told = []
    saver.save(state, 3, "requested", then=lambda: told.append(status.value.checkpoint))
    assert held.began.wait(60)
    on_disk = records.Status.read(paths.attempt(1).status())
    assert (on_disk.state, on_disk.checkpoint) == (records.TRAINING, None)  # not saving: the loop does not wait
    saver.poll()
    assert told == []
    held.go.set()
    until(lambda: saver.poll() or told)
    assert told == ["step-3-a001"]  # after the commit, on the loop's thread
    on_disk = records.Status.read(paths.attempt(1).status())
    assert on_disk.checkpoint == "step-3-a001"
    assert verify_checkpoint(paths.checkpoint("step-3-a001")).root_digest == on_disk.root_digest
    saver.save(state, 3, "requested", then=lambda: told.append("again"))  # it is there
    assert told[1:] == ["again"]


def test_a_temporary_checkpoint_is_put_off_with_one_line_while_another_is_written_and_a_permanent_one_waits(
    parts, saver, held, caplog
):
    _, _, state = parts
    saver, _, paths = saver
    now = time.monotonic()
    assert saver.due(3, now)
    saver.save(state, 3, "checkpointer")
    assert [saver.due(step, now + 60) for step in (3, 4, 5)] == [False] * 3
    assert [record.message for record in caplog.records if "no temporary checkpoint" in record.message] == [
        "step 4: no temporary checkpoint while step-3 is still being written (saves take longer than "
        "trainer.checkpointer.save_interval)"
    ]
    assert saver.due(100, now + 60)
    threading.Timer(0.2, held.go.set).start()
    saver.save(state, 100, "checkpointer")  # waits for step 3
    assert next(found.name for found in list_checkpoints(paths) if found.complete) == "step-3-a001"
    saver.close()
    assert [found.name for found in list_checkpoints(paths)] == ["step-100-a001"]  # step 3 was temporary


def test_the_last_save_is_on_the_disk_when_it_returns_and_the_one_before_it_too(parts, saver, held):
    _, _, state = parts
    saver, status, paths = saver
    saver.save(state, 100, "checkpointer")
    threading.Timer(0.2, held.go.set).start()
    saver.save(state, 101, "stop", last=True)
    assert [found.complete for found in list_checkpoints(paths)] == [True, True]
    assert status.value.checkpoint == "step-101-a001"


def test_a_save_that_fails_behind_the_loop_is_reported_at_the_next_boundary_and_repeated_later(
    parts, saver, held, caplog
):
    _, _, state = parts
    saver, status, paths = saver
    told = []
    held.error = OSError(5, "Input/output error")
    held.go.set()
    saver.save(state, 3, "requested", then=lambda: told.append(3))
    message = f"step 3 not saved: {paths.checkpoint('step-3-a001')}: cannot be written"
    until(lambda: saver.poll() or status.value.message)
    assert message in status.value.message
    assert message in records.Status.read(paths.attempt(1).status()).message
    assert [record.levelname for record in caplog.records if message in record.message] == ["ERROR"]
    assert (told, status.value.checkpoint, status.value.state) == ([], None, records.TRAINING)
    with pytest.raises(NotSaved, match="step 4 not saved"):
        saver.save(state, 4, "stop", last=True)
    held.error = None
    saver.save(state, 3, "requested", last=True)
    assert (status.value.checkpoint, status.value.message) == ("step-3-a001", "")


def test_a_run_that_was_handed_over_while_a_save_was_written_ends_at_the_next_boundary(parts, saver, held):
    _, _, state = parts
    saver, _, paths = saver
    saver.save(state, 3, "checkpointer")
    assert held.began.wait(60)
    seal(paths, epoch=2, holder="large", step=2)
    held.go.set()
    until(lambda: saver._behind.done)
    with pytest.raises(Fenced, match="held by large"):
        saver.poll()
    assert list_checkpoints(paths) == []


# ------------------------------------------------------------------------------------------------------ whole processes


def test_a_whole_attempt_survives_a_failed_save_and_a_sigterm_right_after_a_request_loses_nothing(tmp_path):
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
    assert (status.state, status.checkpoint, status.message) == ("stopped", f"step-{status.step}-a001", "")
    (newest,) = [found for found in list_checkpoints(engine.paths) if found.step == status.step]
    assert newest.complete
    assert verify_checkpoint(engine.paths.checkpoint(newest.name)).root_digest == status.root_digest
