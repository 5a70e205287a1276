"""``metrics.jsonl``: no row is ever torn but the last, while it is written."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream_engine import records
from midstream_engine.tracking.metrics_file import MetricsFile


@contextlib.contextmanager
def no_room_after(path: Path, size: int) -> Iterator[None]:
    """A limit on the size of files is felt as a full disk is: a part of a row is taken, and success reported."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_rows_for_which_there_is_no_room_wait_and_none_is_torn_or_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(str(path))
    file.write({"global_step": 0})
    size = path.stat().st_size
    with no_room_after(path, 5):
        file.write({"global_step": 1})
        file.write({"global_step": 2})
        with pytest.raises(OSError, match="File too large"):
            file.settle()
    assert path.stat().st_size == size
    assert len(caplog.records) == 1
    file.settle()
    file.write({"global_step": 3})
    file.close()
    assert [row["global_step"] for row in records.parse_metrics(path.read_text().splitlines())] == [0, 1, 2, 3]


def test_rows_that_nobody_can_write_are_not_lost_in_silence(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(str(path))
    with no_room_after(path, 5):
        file.write({"global_step": 0})
        with pytest.raises(OSError, match="File too large"):
            file.close()
