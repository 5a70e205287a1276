"""``metrics.jsonl``: no row is ever torn but the last, while it is written."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from midstream_engine import records
from midstream_engine.tracking.metrics import MetricsFile


def test_a_row_for_which_there_is_no_room_is_not_torn(tmp_path: Path) -> None:
    """A full disk takes a part of a row and reports success; a limit on the file's size does the same."""
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(str(path))
    file.write({"global_step": 0})
    size = path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            file.write({"global_step": 1})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.stat().st_size == size
    file.write({"global_step": 2})
    file.close()
    assert [row["global_step"] for row in records.parse_metrics(path.read_text().splitlines())] == [0, 2]
