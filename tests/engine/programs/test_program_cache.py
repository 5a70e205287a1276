"""The program cache: a program is reused if none of its inputs changed, else recompiled."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from midstream_core import records
from midstream_engine.computation import program_cache
from midstream_engine.computation.programs import compile_reference_losses, compile_step
from midstream_engine.computation.setup import CompilePlan, make_plan
from midstream_engine.config import load_config
from midstream_engine.data.batches import Batch
from midstream_engine.rehearse import memory
from midstream_engine.runtime import program_files
from midstream_engine.runtime.environment import versions
from support.paths import CONFIGS

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
settings: Any = jax.config
xla_compiler: Any = import_module("jax._src.compiler")
jax_cache: Any = import_module("jax._src.compilation_cache")
_THRESHOLDS = {"jax_persistent_cache_min_compile_time_secs": 0, "jax_persistent_cache_min_entry_size_bytes": -1}
SMALL = ["--model.seq_len", "8", "--model.hidden_dim", "16", "--model.num_layers", "1", "--model.num_heads", "2"]


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """Jax's cache in its own directory; the programs are in its ``programs``."""
    before = settings.jax_compilation_cache_dir, settings.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    # On a busy machine a small program takes a second, after which jax caches it, too.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 3600)
    compilation_cache.reset_cache()  # it remembers the directory that it was first used with
    yield tmp_path / program_files.FOLDER
    jax.config.update("jax_compilation_cache_dir", before[0])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", before[1])
    compilation_cache.reset_cache()


def plan(*flags: str, devices: int = 2) -> CompilePlan:
    arguments = ["--config_path", str(CONFIGS / "gpt2_tiny.yaml"), *SMALL, *flags]
    return make_plan(load_config(arguments).config, jax.devices()[:devices])


def key(setup: CompilePlan, name: str) -> bytes:
    return records.canonical_json(program_cache._inputs(setup, name))


def updated(setup: CompilePlan, program: Any) -> list[bytes]:
    """The bytes of the state after one update, and of the loss."""
    tokens = np.arange(8 * 8).reshape(8, 8) % 200
    number = jax.device_put(np.int32(0), setup.layout.replicated())
    state, result = program(setup.fresh_state(), number, setup.cut.put(tokens), setup.cut.put(np.ones_like(tokens)))
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((state.model, state.optimizer, result))]


@pytest.mark.drawn
def test_program_cache_returns_an_equal_program(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = plan()
    made = compile_step(setup)
    (file,) = cache.iterdir()
    assert cache.stat().st_mode & 0o077 == 0
    with monkeypatch.context() as patch:  # nothing is traced
        patch.setattr(jax, "jit", lambda *_, **__: pytest.fail("it was made again"))
        found = compile_step(plan("--trainer.steps_per_eval", "7", "--trainer.tracker", "[{type: tensorboard}]"))
    assert memory(found) == memory(made)
    assert updated(setup, found) == updated(setup, made)
    file.write_bytes(file.read_bytes()[:-100])
    assert updated(setup, compile_step(setup)) == updated(setup, made)


@pytest.fixture
def all_in_jax_cache(cache: Path) -> Iterator[Path]:
    """``cache``, where jax stores every program in its own cache, too, as in a run."""
    settings_before = {name: getattr(settings, name) for name in _THRESHOLDS}
    for name, value in _THRESHOLDS.items():
        jax.config.update(name, value)
    yield cache
    for name, value in settings_before.items():
        jax.config.update(name, value)


@pytest.mark.drawn
def test_program_cache_stores_programs_of_jax_cache(all_in_jax_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an upgrade jax still has the program, and midstream has none of the new code."""
    setup = plan(devices=1)
    state, tokens = setup.fresh_state(), np.arange(8 * 8).reshape(8, 8) % 200
    batch = Batch(0, tokens, np.ones((8, 8), np.uint8), {row: bytes(32) for row in range(8)})
    made, losses = updated(setup, compile_step(setup)), compile_reference_losses(setup).measure(state.model, batch)
    monkeypatch.setattr(program_cache, "engine_digest", lambda: "of the next version")
    with monkeypatch.context() as patch:
        patch.setattr(xla_compiler, "backend_compile_and_load", lambda *_: pytest.fail("it was compiled again"))
        assert updated(setup, compile_step(setup)) == made
        compile_reference_losses(setup)
    assert len([file for file in all_in_jax_cache.iterdir() if not file.name.startswith("jit_")]) == 4, "jax's aside"
    with monkeypatch.context() as patch:
        patch.setattr(jax, "jit", lambda *_, **__: pytest.fail("it was traced again"))
        step, reference = compile_step(setup), compile_reference_losses(setup)
    assert updated(setup, step) == made
    assert reference.measure(state.model, batch) == losses


def hidden_reads(patch: pytest.MonkeyPatch) -> None:
    """Other functions read jax's cache, and no event is recorded."""
    patch.setattr(jax_cache, "get_executable_and_time", jax_cache.get_executable_and_time.__wrapped__)
    patch.setattr(xla_compiler.monitoring, "record_event", lambda *_, **__: None)


def hidden_compiler(patch: pytest.MonkeyPatch) -> None:
    """Other functions read jax's cache and compile."""
    hidden_reads(patch)
    patch.setattr(xla_compiler, "backend_compile_and_load", xla_compiler.backend_compile_and_load.__wrapped__)


def other_pickler(patch: pytest.MonkeyPatch) -> None:
    """The executable is serialized by another class."""
    serialize, pickler = serialize_executable.serialize, serialize_executable._JaxPjrtPickler

    def bound(compiled: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(serialize_executable, "_JaxPjrtPickler", pickler)
            return serialize(compiled)

    patch.setattr(serialize_executable, "serialize", bound)


@pytest.mark.drawn
@pytest.mark.parametrize("change", [hidden_reads, hidden_compiler, other_pickler])
def test_program_cache_stores_none_without_its_bytes(
    all_in_jax_cache: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """XLA for CPUs serializes what jax read without its functions: the first call after a load would fail."""
    setup = plan(devices=1)
    made = updated(setup, compile_step(setup))
    (stored,) = all_in_jax_cache.glob("step-*")
    stored.unlink()
    change(monkeypatch)  # as in another version of jax
    for _ in range(2):
        assert updated(setup, compile_step(setup)) == made
        assert list(all_in_jax_cache.glob("step-*")) == []


@pytest.mark.drawn
def test_program_cache_removes_programs_unused_for_a_month(cache: Path) -> None:
    setup = plan()
    compile_step(setup)
    (used,) = cache.iterdir()
    unused, recent = cache / "step-1", cache / "step-2"
    for file, days in ((used, 31), (unused, 31), (recent, 29)):
        file.touch()
        used_at = time.time() - days * 86400
        os.utime(file, (used_at, used_at))
    compile_step(setup)  # is loaded
    assert len(list(cache.iterdir())) == 3
    compile_step(plan("--z_loss_weight", "0.5"))  # is stored
    assert {used, recent} < set(cache.iterdir())
    assert not unused.exists()


def test_program_cache_recompiles_and_reports_invalid_file(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    def make() -> Any:
        return jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((), np.int32)).compile()

    setup = plan(devices=1)
    for content in (None, b"", b"no program", None):
        if content is not None:
            next(cache.iterdir()).write_bytes(content)
        with caplog.at_level(logging.WARNING):
            assert int(program_cache.cached_program(setup, "p", make, (0,), 0)(np.int32(1))) == 2
        assert ("is not used" in caplog.text) == (content is not None)
        caplog.clear()


@pytest.mark.parametrize(
    "change",
    [
        ["--optimizer.learning_rate", "2e-3"], ["--model.hidden_dim", "32"], ["--trainer.mp", "p=f32,c=bfloat16"],
        ["--trainer.num_train_steps", "7"], ["--data.block_cross_document_attention", "false"],
        ["--trainer.matmul_precision", "default"], ["--trainer.jax_config.jax_softmax_custom_jvp", "false"],
    ],
)  # fmt: skip
def test_program_cache_name_follows_relevant_settings(change: list[str]) -> None:
    assert key(plan(*change), "step") != key(plan(), "step")


def test_program_cache_name_follows_devices_and_code(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {key(plan(devices=count), "step") for count in (1, 2, 4)}
    keys.add(key(plan(), "reference_losses"))
    monkeypatch.setenv("XLA_FLAGS", "--xla_of_another_kind")
    keys.add(key(plan(), "step"))
    monkeypatch.setattr(program_cache, "engine_digest", lambda: "of another engine")
    keys.add(key(plan(), "step"))
    monkeypatch.setattr(program_cache, "versions", lambda: {**versions(), "libtpu": "0.0.1"})
    keys.add(key(plan(), "step"))
    assert len(keys) == 7


def test_program_cache_name_follows_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA loads a program with instructions that a processor lacks; running it may end the process."""
    ours = key(plan(), "step")
    inputs = program_cache._inputs(plan(), "step")
    assert "flags" in str(inputs["processor"]) or "Features" in str(inputs["processor"])
    assert int(str(inputs["topology"])) > 0
    with monkeypatch.context() as patch:
        patch.setattr(program_cache, "_processor", lambda: "flags : fpu vme sse2")
        assert key(plan(), "step") != ours
    monkeypatch.setattr(program_cache, "_topology", lambda _: "of other features")
    assert key(plan(), "step") != ours


def test_program_cache_requires_private_directory() -> None:
    before = settings.jax_compilation_cache_dir
    try:
        for place in (None, "gs://bucket/cache"):
            jax.config.update("jax_compilation_cache_dir", place)
            assert program_files.program_files() is None
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
