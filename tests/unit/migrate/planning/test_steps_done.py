"""Updates that a run has had, from which a plan counts those that an older checkpoint gives up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from midstream.migrate.planning.progress import steps_done
from midstream.watch.snapshot import RunView
from midstream_core import records

FAILED = records.Status(records.FAILED, 0, 0, "boot", 7, 1, 1.0)
ROWS: tuple[dict[str, Any], ...] = ({"global_step": 423}, {"global_step": 424})


@pytest.mark.parametrize(
    ("step", "rows", "done"),
    [
        (0, ROWS, 425),  # the newest attempt failed before it had restored anything
        (430, ROWS, 430),  # its last rows were not written
        (0, (), 0),
    ],
)
def test_rows_of_earlier_attempts_count(step: int, rows: tuple[dict[str, Any], ...], done: int) -> None:
    run = RunView("r", "lab", records.Fence(1, "lab"), None, 5, replace(FAILED, step=step), False, curve=rows)
    assert steps_done(run) == done
