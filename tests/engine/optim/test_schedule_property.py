"""The learning rate at each step of any run, against the rules in plain Python."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from midstream_engine.config import AdamConfig
from midstream_engine.optim.schedule import learning_rate


def rule(values: dict[str, Any], total: int) -> list[float]:
    """The rates of updates 0 .. total - 1: numbers and lists alone."""
    peak, low = values["learning_rate"], values["learning_rate"] * values["min_lr_ratio"]
    cycles, length = values.get("cycles"), values.get("cycle_length")
    points = [0]
    if isinstance(cycles, int):
        points += [int(total / cycles * (i + 1)) for i in range(cycles - 1)]
    elif isinstance(cycles, list):
        points += cycles
    elif isinstance(length, list):
        points += [sum(length[: i + 1]) for i in range(len(length))]
    elif length is not None:
        steps = int(length * total) if length <= 1 else int(length)
        points += [i * steps for i in range(1, total // steps)]
    points += [total] if points[-1] != total else []

    def steps_of(value: float, cycle: int) -> int:
        return int(value * cycle) if value <= 1.0 else int(value)

    rates: list[float] = []
    end_before = 0.0
    for number in range(len(points) - 1):
        n = points[number + 1] - points[number]
        warmup = min(n, steps_of(values["rewarmup"] if number else values["warmup"], n))
        decay = n - warmup if values["decay"] is None else min(n - warmup, steps_of(values["decay"], n))

        def shape(t: int, decay: int = decay, warmup: int = warmup) -> float:
            match values["lr_schedule"]:
                case "constant":
                    return peak
                case "linear":
                    return peak + (low - peak) * t / decay
                case "cosine":
                    return low + (peak - low) * 0.5 * (1 + math.cos(math.pi * t / decay))
                case "inv":
                    return peak / ((peak / low - 1) * max(t, 1) / decay + 1)
                case _:
                    return max(peak * min(1.0, 1 / math.sqrt(max(t + warmup, 1) / 10_000)), low)

        for step in range(n):
            if step < warmup:
                rates.append(end_before + (peak - end_before) * step / warmup)
            elif step < n - decay:
                rates.append(peak)
            else:
                rates.append(shape(step - (n - decay)))
        end_before = shape(decay) if decay else peak
    return rates


part = st.one_of(st.just(0.0), st.floats(0.01, 1.0), st.integers(2, 40).map(float))


@st.composite
def runs(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    total = draw(st.sampled_from([20, 57, 100]))  # few shapes: jax compiles for each
    values: dict[str, Any] = {
        "learning_rate": draw(st.floats(1e-5, 1.0)),
        "min_lr_ratio": draw(st.floats(0.01, 1.0)),
        "lr_schedule": draw(st.sampled_from(["constant", "linear", "cosine", "inv", "inv_sqrt"])),
        "warmup": draw(part),
        "rewarmup": draw(part),
        "decay": draw(st.one_of(st.none(), part)),
    }
    match draw(st.sampled_from(["none", "cycles", "ends", "length", "fraction", "lengths"])):
        case "cycles":
            values["cycles"] = draw(st.integers(1, 6))
        case "ends":
            values["cycles"] = sorted(draw(st.sets(st.integers(1, total), min_size=1, max_size=4)))
        case "length":
            values["cycle_length"] = draw(st.integers(2, total + 10))
        case "fraction":
            values["cycle_length"] = draw(st.floats(0.1, 1.0))
        case "lengths":
            ends = sorted(draw(st.sets(st.integers(1, total), min_size=1, max_size=4)))
            values["cycle_length"] = [after - before for before, after in zip([0, *ends], ends, strict=False)]
    return values, total


@seed(20260)
@settings(max_examples=60, deadline=None, database=None)
@given(runs())
def test_schedule_equals_plain_python_at_every_step(run: tuple[dict[str, Any], int]) -> None:
    values, total = run
    got = np.asarray(learning_rate(AdamConfig(**values), total)(np.arange(total)))
    np.testing.assert_allclose(got, rule(values, total), rtol=2e-5, atol=1e-6 * values["learning_rate"])
