"""Limits on the reports of one host's probe.

`read_line` limits each line; this module limits their sum.
"""

from __future__ import annotations

from midstream.errors import HostError
from midstream_core.json_types import ReportLine

MAX_RUNS = 4096
RUNS_LIMIT = 32 << 20  # bytes that describe runs, without their metrics and logs
METRICS_LIMIT = 2 << 30  # bytes of metrics; a run of a million steps has 0.4 GB


class ReportLimits:
    """Counts the bytes of one probe's reports."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._runs: dict[str, int] = {}  # run -> bytes of the largest line that describes it
        self._described = 0
        self._metrics = 0

    def count(self, size: int, report: ReportLine) -> None:
        """Count a report of ``size`` bytes. HostError if the host exceeds a limit."""
        event, run = report.get("event"), report.get("run")
        if event == "metrics":
            self._metrics += size
        if event == "removed":
            self._described -= self._runs.pop(str(run), 0)
        elif run is not None:
            before = self._runs.setdefault(str(run), 0)
            if event == "run" and size > before:
                self._described += size - before
                self._runs[str(run)] = size
        for amount, limit, what in (
            (len(self._runs), MAX_RUNS, f"more than {MAX_RUNS} runs"),
            (self._described, RUNS_LIMIT, f"more than {RUNS_LIMIT >> 20} MiB about its runs"),
            (self._metrics, METRICS_LIMIT, f"more than {METRICS_LIMIT >> 30} GiB of metrics"),
        ):
            if amount > limit:
                raise HostError(
                    f"{self._host}: its probe reports {what}: closed", f"look at the runs directory of {self._host}"
                )
