"""Reference losses of a model that has arrived count where their batch is that of the restored checkpoint."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from midstream_engine.config.batch_schedule import BatchSchedule
from midstream_engine.trainer.attempt.restore_evidence import ModelLosses

SCHEDULE, OTHER = BatchSchedule(((0, 2),)), BatchSchedule(((0, 4),))


class Recorded:
    """Programs and batches that record which model was measured with which batch."""

    def __init__(self) -> None:
        self.measured: list[tuple[Any, ...]] = []
        self.reference_losses = self.batches = self.programs = self.setup = self

    def under(self, schedule: BatchSchedule) -> Any:
        return SimpleNamespace(batch=lambda step: (schedule, step))

    def measure(self, model: Any, batch: Any) -> str:
        self.measured.append((model, *batch))
        return f"losses of {model}"


def losses(ready: Recorded, step: int, schedule: BatchSchedule, early: ModelLosses | None = None) -> ModelLosses:
    return ModelLosses(step, schedule, ready, lambda: early)  # pyright: ignore[reportArgumentType]


def result(found: ModelLosses, model: Any) -> Any:
    found.begin(model)
    return found.result(model)


def test_early_losses_of_the_same_batch_are_not_measured_again() -> None:
    ready = Recorded()
    early = losses(ready, 7, SCHEDULE)
    early.begin("early")  # pyright: ignore[reportArgumentType]
    assert result(losses(ready, 7, SCHEDULE, early), "restored") == "losses of early"
    assert ready.measured == [("early", SCHEDULE, 7)]


@pytest.mark.parametrize(("step", "schedule"), [(8, SCHEDULE), (7, OTHER)])
def test_losses_of_another_batch_are_measured(step: int, schedule: BatchSchedule) -> None:
    ready = Recorded()
    early = losses(ready, 7, SCHEDULE)
    early.begin("early")  # pyright: ignore[reportArgumentType]
    assert result(losses(ready, step, schedule, early), "restored") == "losses of restored"
    assert ready.measured[-1] == ("restored", schedule, step)


def test_without_early_losses_they_are_measured() -> None:
    ready = Recorded()
    assert result(losses(ready, 7, SCHEDULE), "restored") == "losses of restored"
    assert ready.measured == [("restored", SCHEDULE, 7)]
