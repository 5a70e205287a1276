"""What one host may report of itself in all."""

from __future__ import annotations

import pytest

from midstream.errors import HostError
from midstream.watch import line_limits
from midstream.watch.line_limits import Allowance


def test_runs_without_end_are_refused():
    counted = Allowance("lab")
    for number in range(line_limits.MOST_RUNS):
        counted.take(100, {"event": "log", "run": f"r{number}"})
    with pytest.raises(HostError, match="lab: its probe reports more than 4096 runs: closed"):
        counted.take(100, {"event": "log", "run": "one-more"})


def test_a_run_that_is_described_again_counts_once():
    counted = Allowance("lab")
    for _ in range(1000):
        counted.take(1 << 20, {"event": "run", "run": "a"})
    for number in range(31):
        counted.take(1 << 20, {"event": "run", "run": f"b{number}"})
    with pytest.raises(HostError, match="more than 32 MiB about its runs"):
        counted.take(1 << 20, {"event": "run", "run": "c"})


def test_a_run_that_is_no_longer_there_is_not_counted():
    counted = Allowance("lab")
    for number in range(100):
        counted.take(1 << 20, {"event": "run", "run": f"a{number}"})
        counted.take(50, {"event": "gone", "run": f"a{number}"})


def test_metrics_have_a_limit_of_their_own():
    counted = Allowance("lab")
    for _ in range(line_limits.METRICS_LIMIT >> 20):
        counted.take(1 << 20, {"event": "metrics", "run": "a"})
    with pytest.raises(HostError, match="more than 2 GiB of metrics"):
        counted.take(1, {"event": "metrics", "run": "a"})
