"""``metrics.jsonl``: no row is partial, except the last one while it is written."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream_core import records
from midstream_engine.tracking.metrics_file import MetricsFile


@contextlib.contextmanager
def no_room_after(path: Path, size: int) -> Iterator[None]:
    """Limit the file's size: as on a full disk, part of a row is written and success reported."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_metrics_rows_wait_for_space_undamaged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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


def test_metrics_rows_that_cannot_be_written_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(str(path))
    with no_room_after(path, 5):
        file.write({"global_step": 0})
        with pytest.raises(OSError, match="File too large"):
            file.close()
