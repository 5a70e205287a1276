"""When a migrated run counts as healthy."""

from __future__ import annotations

import math
from typing import Any

import pytest

from midstream.migrate.phases.finish import NEAR, losses_are_lost

NAN, INFINITY = math.nan, math.inf


def curve(*losses: float) -> list[dict[str, Any]]:
    """Return rows of steps from 0 on, of which those from 3 on are the target's."""
    return [{"global_step": step, "train/loss": loss, "attempt": 1 + (step >= 3)} for step, loss in enumerate(losses)]


@pytest.mark.parametrize(
    ("losses", "lost"),
    [
        ((2.0, 2.0, 2.0, 1.9, 1.9), False),
        ((2.0, 2.0, 2.0, NAN, 1.9), False),
        ((2.0, 2.0, 2.0, NAN, INFINITY), True),
        ((2.0, NAN, 2.0, NAN), True),
        ((NAN, NAN, NAN, NAN, NAN), False),
        ((2.0, 2.0, 2.0), False),
    ],
)
def test_losses_without_a_number_on_the_target_alone(losses: tuple[float, ...], lost: bool) -> None:
    assert losses_are_lost(curve(*losses), 3) == lost


def test_newest_losses_count() -> None:
    rows = curve(2.0, 2.0, 2.0, *[1.9] * 5, *[NAN] * NEAR)
    assert losses_are_lost(rows, 3)
    assert not losses_are_lost(rows[:-1], 3)
    assert not losses_are_lost([{"global_step": 0}, {"global_step": 5}], 3)
