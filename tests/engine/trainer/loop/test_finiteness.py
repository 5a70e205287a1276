"""States that are not finite: which arrays, since when, and that none is saved."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from midstream_core import records
from midstream_core.attempt.errors import EngineError
from midstream_core.attempt.status_file import StatusFile
from midstream_engine.computation.finiteness import (
    FINITE,
    INFINITE,
    NAN,
    describe,
    find_not_finite,
    float_names,
    number_kinds,
)
from midstream_engine.config import TrainerConfig
from midstream_engine.loop.finite_check import FiniteCheck
from support.engines.engine_runs import Engine

NOT_A_NUMBER, INFINITY = float("nan"), float("inf")
DTYPES = [jnp.float32, jnp.bfloat16, jnp.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [NOT_A_NUMBER, INFINITY, -INFINITY])
def test_one_number_makes_an_array_not_finite(value: float, dtype: jnp.dtype) -> None:
    check = jax.jit(number_kinds)
    tree = {"a": jnp.full((3, 5), jnp.finfo(dtype).max, dtype), "b": jnp.zeros(4, dtype), "count": jnp.int32(7)}
    assert float_names(tree) == ["a", "b"]
    assert check(tree).tolist() == [FINITE, FINITE]
    bad = {**tree, "b": tree["b"].at[2].set(value)}
    assert check(bad).tolist() == [FINITE, INFINITE if np.isinf(value) else NAN]
    assert check({**tree, "a": jnp.full(3, value, dtype).at[1].set(NOT_A_NUMBER)}).tolist() == [NAN, FINITE]


def test_overflow_of_a_rounded_number_is_seen() -> None:
    """In one program, where the compiler might test the number before it was rounded."""

    def update(number: jax.Array) -> tuple[jax.Array, jax.Array]:
        stored = (number * 2).astype(jnp.float16)
        return stored, number_kinds({"w": stored})

    stored, kinds = jax.jit(update)(jnp.full(3, 4e4, jnp.float32))
    assert np.isinf(stored).all()
    assert kinds.tolist() == [INFINITE]


def test_arrays_are_named_by_kind() -> None:
    tree = {name: jnp.zeros(3) for name in "abcdef"}
    for name, value in [*((name, NOT_A_NUMBER) for name in "acdf"), ("e", INFINITY)]:
        tree[name] = tree[name].at[1].set(value)
    found = find_not_finite({"model": tree, "count": jnp.int32(1)})
    assert found == {"NaN": ["model/a", "model/c", "model/d", "model/f"], "infinity": ["model/e"]}
    assert describe(found) == "NaN in model/a, model/c and 2 more arrays; infinity in model/e"
    assert describe(find_not_finite({"a": jnp.zeros(3, jnp.bfloat16)})) == ""


@pytest.fixture
def status(tmp_path: Path) -> StatusFile:
    file = StatusFile(str(tmp_path / "status.json"), run_id="r", attempt=1, epoch=1, num_train_steps=9)
    file.close()
    return file


def test_check_reports_once_and_keeps_the_first_step(status: StatusFile, caplog: pytest.LogCaptureFixture) -> None:
    check = FiniteCheck(TrainerConfig(crash_on_nan=False, crash_on_inf=False), status, ["v", "w"])
    good, bad = np.array([FINITE, FINITE]), np.array([FINITE, INFINITE])
    check.check(good, 1.0, 4)
    assert (check.reason, caplog.records) == ("", [])
    for index in (5, 6):
        check.check(bad, NOT_A_NUMBER, index)
    assert check.reason == "infinity in w, since step 5"
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith("the state after step 5 is not finite: infinity in w; nothing is saved while it is so")
    assert status.value.message == line
    check.check(good, 1.0, 7)
    assert check.reason == ""


@pytest.mark.parametrize(("kind", "name"), [(NAN, "crash_on_nan"), (INFINITE, "crash_on_inf")])
def test_check_ends_the_run_before_its_loss_is_affected(kind: int, name: str, status: StatusFile) -> None:
    check = FiniteCheck(TrainerConfig(), status, ["w"])
    with pytest.raises(EngineError, match=rf"the state after step 5 is not finite: .* in w \(hint: trainer.{name}"):
        check.check(np.array([kind]), 1.0, 5)
    other = TrainerConfig(crash_on_nan=name != "crash_on_nan", crash_on_inf=name != "crash_on_inf")
    FiniteCheck(other, status, ["w"]).check(np.array([kind]), 1.0, 5)


@pytest.mark.drawn
def test_state_that_is_not_finite_is_reported_and_not_saved(tmp_path: Path) -> None:
    flags = [
        "--optimizer.learning_rate", "1e38", "--optimizer.max_grad_norm", "null", "--optimizer.warmup", "0",
        "--trainer.crash_on_nan", "false", "--trainer.crash_on_inf", "false", "--trainer.num_train_steps", "12",
        "--trainer.checkpointer.keep", "[{every: 8}]",
    ]  # fmt: skip
    with Engine(tmp_path, *flags) as engine:
        code, log = engine.finish()
    assert code == 1
    lines = [line.split(" ", 2)[-1] for line in log.splitlines() if "is not finite" in line]
    first, *refused = lines
    step = int(first.split("after step ")[1].split()[0])
    assert step < 8
    assert "is not finite: NaN in " in first
    assert "model/" in first
    assert len(engine.rows(1)) == 12
    assert refused[0].startswith("step 8 not saved: the state is not finite: NaN in ")
    assert refused[-1].startswith("step 12 not saved: the state is not finite: NaN in ")
    assert all(line.endswith(f", since step {step}") for line in refused)
    status = engine.status(1)
    assert status is not None
    assert (status.state, status.message) == (records.FAILED, refused[-1])
    assert not Path(engine.paths.checkpoints).exists() or not list(Path(engine.paths.checkpoints).iterdir())
    assert "Traceback" not in log
    assert "JSON" not in log
