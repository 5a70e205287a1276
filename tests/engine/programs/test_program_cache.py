"""The program cache: a program is reused if none of its inputs changed, else recompiled."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from midstream_engine.config import load_config
from midstream_engine.rehearse import memory
from midstream_engine.trainer.computation import program_cache
from midstream_engine.trainer.computation.programs import compile_step
from midstream_engine.trainer.computation.setup import Plan, make_plan
from support.paths import CONFIGS

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
settings: Any = jax.config
SMALL = ["--model.seq_len", "8", "--model.hidden_dim", "16", "--model.num_layers", "1", "--model.num_heads", "2"]


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """Jax's cache in its own directory; the programs are in its ``programs``."""
    before = settings.jax_compilation_cache_dir, settings.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    # On a busy machine a small program takes a second, after which jax caches it, too.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 3600)
    compilation_cache.reset_cache()  # it remembers the directory that it was first used with
    yield tmp_path / program_cache.FOLDER
    jax.config.update("jax_compilation_cache_dir", before[0])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", before[1])
    compilation_cache.reset_cache()


def plan(*flags: str, devices: int = 2) -> Plan:
    arguments = ["--config_path", str(CONFIGS / "gpt2_tiny.yaml"), *SMALL, *flags]
    return make_plan(load_config(arguments).config, jax.devices()[:devices])


def updated(setup: Plan, program: Any) -> list[bytes]:
    """The bytes of the state after one update, and of the loss."""
    tokens = np.arange(8 * 8).reshape(8, 8) % 200
    number = jax.device_put(np.int32(0), setup.layout.replicated())
    state, result = program(setup.fresh_state(), number, setup.cut.put(tokens), setup.cut.put(np.ones_like(tokens)))
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((state.model, state.optimizer, result))]


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


def test_program_cache_skips_programs_of_jax_cache(cache: Path) -> None:
    """XLA for CPUs writes such a program without its functions: its first call after a load fails."""
    setup = plan(devices=1)
    thresholds = settings.jax_persistent_cache_min_compile_time_secs, settings.jax_persistent_cache_min_entry_size_bytes
    try:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        made = updated(setup, compile_step(setup))
        (file,) = cache.iterdir()
        file.unlink()
        for _ in range(2):
            assert updated(setup, compile_step(setup)) == made
            assert list(cache.iterdir()) == []
    finally:
        for name, value in zip(("compile_time_secs", "entry_size_bytes"), thresholds, strict=True):
            jax.config.update(f"jax_persistent_cache_min_{name}", value)


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
        ["--trainer.jax_config.jax_default_matmul_precision", "highest"],
    ],
)  # fmt: skip
def test_program_cache_name_follows_relevant_settings(change: list[str]) -> None:
    assert program_cache._key(plan(*change), "step") != program_cache._key(plan(), "step")


def test_program_cache_name_follows_devices_and_code(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {program_cache._key(plan(devices=count), "step") for count in (1, 2, 4)}
    keys.add(program_cache._key(plan(), "reference_losses"))
    monkeypatch.setenv("XLA_FLAGS", "--xla_of_another_kind")
    keys.add(program_cache._key(plan(), "step"))
    monkeypatch.setattr(program_cache, "engine_digest", lambda: "of another engine")
    keys.add(program_cache._key(plan(), "step"))
    assert len(keys) == 6


def test_program_cache_requires_private_directory() -> None:
    before = settings.jax_compilation_cache_dir
    try:
        for place in (None, "gs://bucket/cache"):
            jax.config.update("jax_compilation_cache_dir", place)
            assert program_cache._directory() is None
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
