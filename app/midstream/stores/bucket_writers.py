"""Processes that may write to a run's bucket, as all hosts of a fleet report them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from midstream_host.runs.writers import ENDED, MIGRATION, RUNNING, Writer


@dataclass(frozen=True)
class BucketWriters:
    """Writers of a run, and the hosts whose writers are not known.

    Any host's report is enough to keep an object. To remove one, its attempt has to be known, and each process of it
    has ended by the report of a host, while no host says that it runs.

    Attributes:
        reports: What each host that answers has a record of.
        unreachable: Hosts that do not answer and may have the run.
    """

    reports: Sequence[Writer] = ()
    unreachable: Sequence[str] = ()

    def of_attempt(self, attempt: int) -> str:
        """Return why a process of an attempt may be writing; empty where none may."""
        why = self._unanswered() or self._may_write(attempt) or self._may_write(MIGRATION)
        if why or any(report.attempt == attempt for report in self.reports) or attempt == MIGRATION:
            return why
        return f"no host of the fleet has a record of attempt {attempt}: it may be running elsewhere"

    def any(self) -> str:
        """Return why some process may be writing; empty where none may."""
        attempts = {report.attempt for report in self.reports}
        return self._unanswered() or next((why for number in sorted(attempts) if (why := self._may_write(number))), "")

    def _unanswered(self) -> str:
        if not self.unreachable:
            return ""
        verb = "does" if len(self.unreachable) == 1 else "do"
        return f"{', '.join(self.unreachable)} {verb} not answer: a process there may be writing it"

    def _may_write(self, attempt: int) -> str:
        """Return the first reason of a process of which no host proves the end."""
        mine = [report for report in self.reports if report.attempt == attempt]
        ended = {report.process for report in mine if report.state == ENDED}
        open_ = [report for report in mine if report.state == RUNNING or report.process not in ended]
        return open_[0].why if open_ else ""
