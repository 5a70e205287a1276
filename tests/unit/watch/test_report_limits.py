"""Limits of all that one host may report."""

from __future__ import annotations

import pytest

from midstream.errors import HostError
from midstream.watch import report_limits
from midstream.watch.report_limits import ReportLimits


def test_too_many_runs_are_refused() -> None:
    counted = ReportLimits("lab")
    for number in range(report_limits.MAX_RUNS):
        counted.count(100, {"event": "log", "run": f"r{number}"})
    with pytest.raises(HostError, match="lab: its probe reports more than 4096 runs: closed"):
        counted.count(100, {"event": "log", "run": "one-more"})


def test_run_reported_again_counts_once() -> None:
    counted = ReportLimits("lab")
    for _ in range(1000):
        counted.count(1 << 20, {"event": "run", "run": "a"})
    for number in range(31):
        counted.count(1 << 20, {"event": "run", "run": f"b{number}"})
    with pytest.raises(HostError, match="more than 32 MiB about its runs"):
        counted.count(1 << 20, {"event": "run", "run": "c"})


def test_removed_run_is_not_counted() -> None:
    counted = ReportLimits("lab")
    for number in range(100):
        counted.count(1 << 20, {"event": "run", "run": f"a{number}"})
        counted.count(50, {"event": "removed", "run": f"a{number}"})


def test_metrics_have_their_own_limit() -> None:
    counted = ReportLimits("lab")
    for _ in range(report_limits.METRICS_LIMIT >> 20):
        counted.count(1 << 20, {"event": "metrics", "run": "a"})
    with pytest.raises(HostError, match="more than 2 GiB of metrics"):
        counted.count(1, {"event": "metrics", "run": "a"})
