"""The downtime report: phases sum to the downtime with any clocks of the hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.migrate.journal import downtime_report
from midstream.migrate.journal.downtime_report import DowntimeReport, Marks
from midstream.migrate.stages import DOWNTIME_PHASES

SPENT = {
    "copy_seconds": 2.0,
    "verify_seconds": 1.0,
    "restore_seconds": 3.0,
    "compile_seconds": 4.0,
    "first_step_seconds": 0.5,
}
# Seconds: stop command 100, end of the last step 101, stopped 103, found stopped 103.5, relaunched 107, first step 120.
HONEST = Marks(101.0, 103.0, 120.0, sealing=100.0, stop_seen=103.5, relaunched=107.0, training_seen=120.4)


def measure(marks: Marks) -> DowntimeReport:
    return downtime_report.measure({}, marks, **SPENT)


def test_measure_assigns_every_second_to_a_phase() -> None:
    found = measure(HONEST)
    assert found.total == pytest.approx(19.0)
    assert found.measured == pytest.approx(
        {
            "quiesce": 0.5, "save": 2.0, "copy": 2.0, "verify": 1.0, "provision": 6.0, "install": 0.0,
            "compile": 4.0, "restore": 3.0, "first_step": 0.5,
        }
    )  # fmt: skip
    assert list(found.measured) == list(DOWNTIME_PHASES)


@pytest.mark.parametrize(("source", "target"), [(-3600.0, 0.0), (3600.0, 0.0), (0.0, 3600.0), (0.0, -3600.0)])
def test_measure_bounds_marks_of_wrong_clocks(source: float, target: float) -> None:
    marks = Marks(
        101.0 + source, 103.0 + source, 120.0 + target,
        sealing=100.0, stop_seen=103.5, relaunched=107.0, training_seen=120.4,
    )  # fmt: skip
    found = measure(marks)
    assert found.total is not None
    assert 10.5 <= found.total <= 20.5


def test_time_before_the_migration_is_not_downtime() -> None:
    found = measure(Marks(100.0, 101.0, 250_020.0, sealing=250_000.0, relaunched=250_005.0, training_seen=250_020.1))
    assert found.total == pytest.approx(20.0)
    assert found.measured["save"] == found.measured["quiesce"] == 0.0


moments = st.floats(-1e6, 1e6)
found_at = st.none() | moments


@given(moments, moments, moments, moments, found_at, found_at, found_at)
def test_phases_are_nonnegative_and_sum_to_the_total(
    last: float,
    stopped: float,
    first: float,
    sealing: float,
    stop: float | None,
    start: float | None,
    end: float | None,
) -> None:
    found = measure(Marks(last, stopped, first, sealing, stop, start, end))
    assert found.total is not None
    assert min(found.measured.values()) >= 0.0
    assert sum(found.measured.values()) == pytest.approx(found.total, abs=1e-6)
