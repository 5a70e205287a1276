"""Replay overlap: losses of the same steps on both sides, and what a restarted order of the data looks like."""

from __future__ import annotations

import json
import math
import random

import pytest

from midstream.migrate.journal.facts import Facts
from midstream.migrate.proof.replay_overlap import NARROWEST, WIDEST, band_of, overlap_of


def rows(losses: list[float], first: int = 0, rate: float = 0.1) -> list[dict[str, float]]:
    return [
        {"global_step": first + index, "train/loss": loss, "optim/learning_rate": rate}
        for index, loss in enumerate(losses)
    ]  # fmt: skip


def noisy(seed: int, count: int) -> list[float]:
    print(f"seed {seed}")
    draw = random.Random(seed)
    return [3.0 - 0.001 * step + draw.gauss(0, 0.1) for step in range(count)]


def test_equal_losses_are_identical() -> None:
    source = rows(noisy(1, 80))
    overlap = overlap_of(source, rows([row["train/loss"] for row in source[70:]], 70), 70)
    assert overlap.identical
    assert len(overlap.steps) == 10
    assert [step for step, _, _ in overlap.learning_rates] == list(range(70, 80))


def test_rounding_agrees_within_the_band() -> None:
    source = rows(noisy(2, 80))
    overlap = overlap_of(source, rows([row["train/loss"] * (1 + 1e-6) for row in source[70:]], 70), 70)
    assert overlap.agrees
    assert not overlap.identical


@pytest.mark.parametrize("seed", range(10))
def test_data_that_restart_are_found(seed: int) -> None:
    losses = noisy(seed, 200)
    overlap = overlap_of(rows(losses), rows(losses[:20], 150), 150)  # the batches of the epoch's begin, again
    assert not overlap.agrees
    assert overlap.first_difference is not None
    assert 150 <= overlap.first_difference < 156


def test_band_follows_the_differences_of_neighbours() -> None:
    assert band_of([2.0, 2.0, 2.0]) == NARROWEST
    assert band_of([1.0, 2.0, 1.0]) == WIDEST
    assert band_of([]) == WIDEST
    assert NARROWEST < band_of([2.0, 2.04, 2.0, 2.04]) < WIDEST


def test_no_common_step_is_no_evidence() -> None:
    overlap = overlap_of(rows([1.0, 2.0]), rows([3.0], 10), 10)
    assert not overlap.steps
    assert overlap.worst == 0.0


def test_losses_that_are_nan_on_both_sides_say_nothing() -> None:
    nan = float("nan")
    source = rows([2.0, nan, 2.1, 2.2])
    overlap = overlap_of(source, rows([2.0, nan, 2.1, 2.2]), 0)
    assert overlap.identical
    assert [step for step, _, _ in overlap.steps] == [0, 2, 3]
    assert overlap_of(source, rows([2.0, 2.0, nan]), 0).first_difference == 1


def test_losses_that_are_nan_do_not_widen_the_band() -> None:
    nan = float("nan")
    assert band_of([2.0, nan, nan, nan, 2.0, 2.0]) == NARROWEST
    assert not overlap_of(rows([2.0, 2.0, nan, nan, nan]), rows([2.0, 2.01]), 0).agrees


def test_learning_rates_that_are_nan_on_both_sides_say_nothing() -> None:
    nan = float("nan")
    one, other = rows([2.0, 2.0], rate=nan), rows([2.0, 2.0], rate=nan)
    assert overlap_of(one, other, 0).learning_rates == ()
    assert len(overlap_of(one, rows([2.0, 2.0]), 0).learning_rates) == 2, "of one side only: they differ"


def test_facts_of_a_loss_of_nan_are_read_from_the_journal() -> None:
    overlap = overlap_of(rows([2.0, 2.1]), rows([2.0, float("nan")]), 0)
    assert math.isinf(overlap.worst)
    facts = Facts(agreement=overlap.facts())
    assert Facts.from_json(json.loads(json.dumps(facts.to_json()))) == facts, "else the line counts as damaged"


@pytest.mark.parametrize(("begun", "compared"), [(20, [29, 39]), (25, [39]), (30, [39])])
def test_mean_of_steps_that_were_not_all_done_says_nothing(begun: int, compared: list[int]) -> None:
    """A log of every tenth step may have means of ten losses: after a start at step 25 that of five."""
    source = [{"global_step": step, "train/loss": 2.0 + step / 100} for step in range(9, 60, 10)]
    target = [
        {**row, "train/loss": 9.0 if row["global_step"] - 9 < begun else row["train/loss"]} for row in source[2:4]
    ]
    overlap = overlap_of(source, target, begun)
    assert [step for step, _, _ in overlap.steps] == compared
    assert overlap.identical
