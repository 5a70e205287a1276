"""Room for a copy of a state on its devices, by the statistics of the devices; and the saver that uses it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import pytest
from jax.errors import JaxRuntimeError

from midstream_core import records
from midstream_core.attempt.status_file import StatusFile
from midstream_core.records import RunPaths
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_engine.checkpoint.saving import device_copy, snapshot
from midstream_engine.computation.programs import Programs
from midstream_engine.computation.setup import Setup, prepare
from midstream_engine.computation.train_state import TrainState
from midstream_engine.config import load_config
from midstream_engine.loop import device_memory
from midstream_engine.loop.device_memory import DeviceMemory
from midstream_engine.loop.saving import Saver
from midstream_engine.runtime.attempt_record import open_attempt
from support.paths import CONFIGS

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]

GIB = 1 << 30
# Of a device that took its memory at the start: 20 GiB in use, 59 at most so far.
ROOMY = {"bytes_limit": 64 * GIB, "bytes_in_use": 20 * GIB, "peak_bytes_in_use": 40 * GIB}


def memory_with(
    monkeypatch: pytest.MonkeyPatch, *statistics: dict[str, int] | None, needed: int = 12 * GIB, working: int | None = 0
) -> DeviceMemory:
    """Devices named 0, 1, ... with the statistics, and a state that needs as much on each."""
    monkeypatch.setattr(device_memory, "device_bytes", lambda _: dict.fromkeys(range(len(statistics)), needed))
    return DeviceMemory(lambda: working, lambda device: statistics[cast(int, device)])


@pytest.mark.parametrize(
    ("changes", "working", "fits"),
    [
        ({}, 20 * GIB, True),  # 12 + 20 + 2 of 44 are free
        ({}, 31 * GIB, False),  # the update needs more than ever before
        ({"peak_bytes_in_use": 51 * GIB}, 0, False),  # what was in use before would not fit beside the copy
        ({"bytes_in_use": 35 * GIB}, 20 * GIB, False),
        ({"largest_free_block_bytes": 33 * GIB}, 20 * GIB, False),  # in pieces
        ({"largest_free_block_bytes": 35 * GIB}, 20 * GIB, True),
        ({"largest_free_block_bytes": 0}, 20 * GIB, True),  # not counted
        ({"pool_bytes": 64 * GIB}, 20 * GIB, True),
        ({"pool_bytes": 42 * GIB}, 20 * GIB, False),  # grows: 22 GiB may be taken from the device
        ({"pool_bytes": 28 * GIB}, 20 * GIB, True),
        ({}, None, False),  # not known
    ],
)
def test_room_is_that_of_copy_and_update(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, int], working: int | None, fits: bool
) -> None:
    assert memory_with(monkeypatch, {**ROOMY, **changes}, working=working).holds_copy({}) is fits
    assert memory_with(monkeypatch, ROOMY, {**ROOMY, **changes}, working=working).holds_copy({}) is fits  # any device


@pytest.mark.parametrize("statistics", [None, {}, {"bytes_in_use": 0}, {"bytes_limit": 64 * GIB}])
def test_device_without_statistics_has_no_room(
    monkeypatch: pytest.MonkeyPatch, statistics: dict[str, int] | None, caplog: pytest.LogCaptureFixture
) -> None:
    memory = memory_with(monkeypatch, ROOMY, statistics)
    with caplog.at_level(logging.INFO):
        assert not memory.holds_copy({})
        assert not memory.holds_copy({})
    assert caplog.messages == [  # once
        "training waits while a state is fetched from the devices: 1 does not report its memory"
    ]


def test_peak_of_an_earlier_copy_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics = dict(ROOMY)
    memory = memory_with(monkeypatch, statistics)
    assert memory.holds_copy({})
    memory.note({}, copied=True)
    statistics["peak_bytes_in_use"] += 12 * GIB  # with the copy
    assert memory.holds_copy({})
    statistics["peak_bytes_in_use"] += 12 * GIB  # an evaluation takes more
    assert not memory.holds_copy({})


def test_failed_copy_is_not_tried_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    memory = memory_with(monkeypatch, ROOMY)
    assert memory.holds_copy({})
    memory.note({}, copied=False)
    with caplog.at_level(logging.INFO):
        assert not memory.holds_copy({})
    assert caplog.messages[0].endswith("a copy on the devices has failed")


def test_state_on_cpus_is_not_looked_at() -> None:
    memory = DeviceMemory(lambda: pytest.fail("looked"), lambda _: pytest.fail("looked"))
    state = {"x": jnp.zeros((1024, 1024))}
    memory.prepare(state)
    assert not memory.holds_copy(state)


# ------------------------------------------------------------------------------------------------------------ the saver

Parts = tuple[Setup, Programs, TrainState]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """A model with arrays of more than 1 MiB."""
    flags = ["--model.hidden_dim", "512", "--trainer.checkpointer.keep", "[{every: 100}]"]
    loaded = load_config(["--config_path", str(CONFIGS / "gpt2_tiny.yaml"), *flags])
    setup = prepare(loaded.config, str(tmp_path_factory.mktemp("root")), None, jax.devices()[:2])
    programs = Programs(setup)
    programs.wait()
    return setup, programs, setup.fresh_state()


@pytest.fixture
def as_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the saver copy on virtual CPU devices, too."""

    def device_bytes(tree: Any) -> dict[Any, int]:
        parts = snapshot._parts(list(snapshot.flatten(tree).values()), spread=True)
        return {part.data.device: part.size for part in parts if part.copied}

    monkeypatch.setattr(device_memory, "device_bytes", device_bytes)


@pytest.fixture
def saver(parts: Parts, tmp_path: Path, as_accelerators: None) -> Iterator[tuple[Saver, StatusFile, RunPaths]]:
    del as_accelerators
    setup, programs, state = parts
    attempt = open_attempt(str(tmp_path), "r", {})
    status = StatusFile(attempt.files.status(), run_id="r", attempt=1, epoch=1, num_train_steps=9)
    status.update(state=records.TRAINING)
    memory = DeviceMemory(lambda: 0, lambda _: ROOMY)
    memory.prepare(state)
    saver = Saver(setup, attempt, status, programs.reference_losses, 0.0, memory)
    yield saver, status, attempt.paths
    saver.close()
    status.close()


def finish_after_update(saving: Saver, state: TrainState) -> None:
    """Compute an update that takes the memory of the state, and wait for the running save."""
    update = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 0 + 7, tree), donate_argnums=0)
    jax.block_until_ready(update((state.model, state.optimizer)))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.model))
    saving._task.wait()
    saving.poll()


def objects_of(paths: RunPaths, name: str) -> dict[str, str]:
    report = verify_checkpoint(paths.checkpoint(name), deep=True)
    assert report.sound
    return {each["path"]: each["sha256"] for each in report.manifest.objects if each["path"] != "train.json"}


def test_end_waits_for_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process could crash at its exit while a thread is in jax."""
    compiling, go_on, events = threading.Event(), threading.Event(), list[str]()

    def compile_copy() -> None:
        compiling.set()
        assert go_on.wait(60)
        events.append("compiled")

    monkeypatch.setattr(device_memory, "device_bytes", lambda _: {"device": 1})
    monkeypatch.setattr(device_memory, "prepare_device_copy", lambda _: compile_copy)
    memory = DeviceMemory(lambda: 0)
    memory.close()  # nothing was prepared
    memory.prepare(None)
    assert compiling.wait(60)
    threading.Timer(0.1, go_on.set).start()
    memory.close()
    assert events == ["compiled"]


def test_saver_copies_on_devices_and_training_goes_on(
    parts: Parts, saver: tuple[Saver, StatusFile, RunPaths], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, state = parts
    saving, status, paths = saver
    copies: list[jax.Array] = []
    original = snapshot.copy_on_devices
    monkeypatch.setattr(snapshot, "copy_on_devices", lambda arrays: copies.extend(original(arrays)) or list(copies))
    spent = jax.tree.map(jnp.copy, state)
    saving.save(spent, 3, "requested")
    finish_after_update(saving, spent)
    assert (status.value.checkpoint, status.value.message) == ("step-3-a001", "")
    assert copies
    assert all(copy.is_deleted() for copy in copies)
    made, written = len(copies), objects_of(paths, "step-3-a001")
    saving.save(state, 4, "stop", last=True)  # fetched: training ends
    assert len(copies) == made
    assert written == objects_of(paths, "step-4-a001")


@pytest.mark.drawn
def test_saver_without_device_memory_fetches_from_then_on(
    parts: Parts,
    saver: tuple[Saver, StatusFile, RunPaths],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, _, state = parts
    saving, status, paths = saver
    tried = []

    def full(_: Any) -> None:
        tried.append(1)
        raise JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    written = []
    for step in (3, 100):
        spent = jax.tree.map(jnp.copy, state)
        with monkeypatch.context() as patch:
            patch.setattr(device_copy.jax, "block_until_ready", full)
            saving.save(spent, step, "requested")
        finish_after_update(saving, spent)
        assert status.value.checkpoint == f"step-{step}-a001"
        written.append(objects_of(paths, f"step-{step}-a001"))
    assert tried == [1]
    assert len([message for message in caplog.messages if message.startswith("no copy of the state")]) == 1
    assert written[0] == written[1]


def test_programs_report_the_memory_beside_their_arguments(parts: Parts) -> None:
    _, programs, _ = parts
    assert programs.evaluate is None
    working = programs.working_bytes()
    assert working is not None
    analysis = programs.reference_losses.compiled.memory_analysis()
    assert working >= analysis.temp_size_in_bytes > 0
