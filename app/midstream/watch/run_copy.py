"""State of one copy of a run, merged from the events of its host."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from midstream.watch.log_tail import LogTail
from midstream.watch.loss_curve import LossCurve
from midstream.watch.reported_values import reported
from midstream.watch.snapshot import RunView
from midstream_core import records
from midstream_core.json_types import JsonObject, LoggedRow, ReportLine

if TYPE_CHECKING:
    from midstream_core.listed_checkpoint import ListedCheckpoint

RECORDS = ("fence", "lineage", "status", "store")  # that a run's line may hold


@functools.cache
def _readers() -> dict[str, type[records.JsonRecord]]:
    """Return the classes of a line's records: they are loaded with the first line."""
    return {"fence": records.Fence, "lineage": records.Lineage, "status": records.Status, "exit": records.ProcessExit}


def _listed(checkpoints: Sequence[JsonObject]) -> tuple[ListedCheckpoint, ...]:
    from midstream_core.listed_checkpoint import ListedCheckpoint

    return tuple(reported(ListedCheckpoint, checkpoint) for checkpoint in checkpoints)


class RunCopy:
    """State of one copy of a run. Not thread-safe."""

    __slots__ = ("_curve", "_damaged", "_dirty", "_log", "_misread", "_view", "positions")

    def __init__(self, host: str, run_id: str) -> None:
        # (attempt, inode, bytes) of the metrics: a dict for each run would take 20 MB for 100,000 runs.
        self.positions: tuple[tuple[int, int, int], ...] = ()
        self._view = RunView(run_id, host, None, None, 0, None, False)
        self._curve = LossCurve()
        self._log = LogTail()
        self._misread: dict[str, str] = {}  # part -> why it cannot be read
        self._damaged: Mapping[str, str] = {}  # file -> error, as its host reports
        self._dirty = False

    def view(self) -> RunView:
        """Return the current view, the same object until it changes."""
        if self._dirty:
            self._view = replace(self._view, curve=self._curve.rows(), log=self._log.lines, log_range=self._log.range)
            self._dirty = False
        return self._view

    @property
    def store(self) -> str:
        return self._view.store

    def set_bucket_checkpoints(self, checkpoints: Sequence[JsonObject], error: str) -> None:
        """Set the checkpoints in its bucket, which replace those on its host."""
        self._misread["bucket"] = f"its checkpoints in {self.store} are unknown: {error}" if error else ""
        self._view = replace(
            self._view, checkpoints=_listed(checkpoints), checkpoints_listed=True, problem=self._problem
        )
        self._dirty = True

    def with_bucket_checkpoints(self, view: RunView) -> RunView:
        """Return an older view of this run with the current checkpoints of its bucket."""
        now = self._view
        if view.store != now.store:
            return view
        return replace(
            view, checkpoints=now.checkpoints, checkpoints_listed=now.checkpoints_listed, problem=now.problem
        )

    @property
    def _problem(self) -> str:
        return "; ".join(filter(None, self._misread.values()))

    def take(self, event: str, line: JsonObject, rows: Sequence[JsonObject] = ()) -> None:
        """Merge an event; ``rows`` are those of a metrics event."""
        if event == "run":
            self._change(line)
        elif event == "metrics":
            self._metrics(line, rows)
        elif event == "log":
            self._log.take(line)
        self._dirty = True

    def _change(self, line: ReportLine) -> None:
        changes: dict[str, Any] = {
            key: line[key]
            for key in ("attempt", "running", "unproven", "job_remark", "ended_without_status", "ownership")
            if key in line
        }
        if "attempt" in changes:
            self._log.clear()  # the log is the newest attempt's, which may have written nothing yet
        if "store" in line:
            changes |= self._parsed("store", lambda: self._store_change(_record(records.Store, "store", line["store"])))
        if "checkpoints" in line and not changes.get("store", self.store):
            changes["checkpoints"] = _listed(line["checkpoints"])
        for key, kind in _readers().items():
            if key in line:
                changes |= self._parsed(key, lambda key=key, kind=kind: {key: _record(kind, key, line[key])})
        self._view = replace(self._view, **changes)
        attempts = {attempt for attempt, *_ in self.positions}
        for attempt in attempts - set(line.get("attempts", attempts)):
            self._restart(attempt)
        if "fence" in changes or "lineage" in changes:
            self._parsed("curve", lambda: self._curve.set_records(self._view.lineage, self._view.fence))
        if "problem" in line:
            self._misread["problem"] = line["problem"]
        if "damaged" in line:
            self._damaged = line["damaged"]
        unread = {f"{name}.json": self._misread[name] for name in RECORDS if self._misread.get(name)}
        damaged = tuple({**self._damaged, **unread}.items())
        self._misread["damaged"] = "; ".join(f"{name}: {why}" for name, why in self._damaged.items())
        self._misread = {what: why for what, why in self._misread.items() if why}
        self._view = replace(self._view, problem=self._problem, damaged=damaged)

    def _store_change(self, where: records.Store | None) -> dict[str, Any]:
        """Return the changes of the view for a ``store.json``. The bucket is listed later."""
        url = where.url.rstrip("/") if where is not None else ""
        if url == self.store:
            return {}
        self._misread.pop("bucket", None)
        return {"store": url, "checkpoints_listed": not url, "checkpoints": ()}

    def _parsed(self, what: str, read: Callable[[], object]) -> Any:
        """Return the result of ``read``.

        For a malformed record it is empty, and the view has the error.
        """
        try:
            value = read()
        except records.RecordError as error:
            self._misread[what] = " ".join(str(error).split())
            return {}
        self._misread.pop(what, None)
        return value

    def _metrics(self, line: ReportLine, rows: Sequence[LoggedRow]) -> None:
        attempt = line["attempt"]
        if line["offset"] == 0:
            self._restart(attempt)
        self._curve.extend(attempt, rows)
        self.positions = (*self._other_positions(attempt), (attempt, line["inode"], line["end"]))

    def _restart(self, attempt: int) -> None:
        self.positions = self._other_positions(attempt)
        self._curve.restart(attempt)

    def _other_positions(self, attempt: int) -> tuple[tuple[int, int, int], ...]:
        return tuple([position for position in self.positions if position[0] != attempt])


def _record(kind: Any, name: str, value: Any) -> Any:
    return None if value is None else kind.from_json(value, f"{name}.json")
