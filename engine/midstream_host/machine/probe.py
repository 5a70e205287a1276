"""Probe of a host: reports its runs and its hardware until stdin closes.

The reports are JSON lines on stdout:

``hello``     names of the machine, once
``run``       changed fields of a run: fence, ownership (text of its signed records), lineage, store, attempts, attempt,
              status, running, job_remark (what its job waits for, or how it ended), exit (of the process that failed
              first), checkpoints, damaged ({file: what is wrong with it}), problem
``metrics``   complete lines of an attempt's metrics.jsonl from byte ``offset`` to ``end``; offset 0: the file is new
``log``       new text of the newest attempt's log: bytes ``offset`` to ``end`` of the log of ``process``; ``first``:
              the first text that is reported of this log
``removed``   the run's directory was removed
``inventory`` what changed of hardware and of the processes that use its accelerators
``beat``      end of each poll: the clock (UTC seconds) and what changed of processor, memory, disk, accelerators, and
              of the rates of network and disks (bytes a second since the last poll)
``clock``     the answer to a ping

stdin takes one JSON object a line: ``{"ping": n}``, and ``{"pace": seconds}``, the interval of polls.
Standard library only; Python 3.8.
"""

from __future__ import annotations

import functools
import json
import os
import select
import sys
import threading
import time
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from midstream_core import records
from midstream_core.json_types import JsonValue
from midstream_host.declarations import program
from midstream_host.machine import accelerators, gauges, inventory
from midstream_host.machine.rates import CounterRates
from midstream_host.runs import damaged_records, job_remark, run_checkpoints, run_state, slurm, unknown_process

CHUNK = 1 << 18  # bytes of metrics or log in one line
LOG_TAIL = 1 << 15  # bytes of a log in its first report
ACCELERATORS_TIMEOUT = 8.0  # seconds for which the first beat waits for nvidia-smi
INVENTORY_TIMEOUT = 2.0  # seconds for which it waits for the inventory
INVENTORY_INTERVAL = 30.0  # seconds
PING_TIMEOUT = 120.0  # seconds without a ping until the probe exits: a lost connection may never close stdin

Emit = Callable[..., None]

ReportedFields = Dict[str, Any]  # that the app has


@program
def main(
    root: str,
    interval: float = 1.0,
    devices: Optional[int] = None,
    positions: Optional[Mapping[str, Mapping[str, List[int]]]] = None,
    visible: Optional[List[str]] = None,
) -> int:
    """Report the runs under ``root`` and the machine every ``interval`` seconds.

    A program. ``positions``: the metrics that the app has already: run -> attempt -> [inode, bytes]. ``devices`` and
    ``visible``: see `Accelerators`.
    """
    writing = threading.Lock()

    def emit(event: str, **fields: object) -> None:
        line = json.dumps(dict(fields, event=event)).encode() + b"\n"
        with writing:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()

    slurm.query_in_background()
    pace = PollPace(interval)
    threading.Thread(target=_listen, args=(emit, pace), daemon=True).start()
    probe = Probe(root, emit, devices=devices, positions=positions, facts=InventoryThread(), visible=visible)
    try:
        emit("hello", **gauges.identity())
        while True:
            began = time.monotonic()
            probe.poll()
            pace.rest(began)
    except BrokenPipeError:
        os._exit(0)


class PollPace:
    """Interval of the polls, which the app may change."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._changed = threading.Event()

    def set(self, interval: float) -> None:
        self._interval = interval
        self._changed.set()

    def rest(self, began: float) -> None:
        self._changed.clear()
        # On a slow disk a poll may take longer than the interval: rest between polls all the same.
        until = max(began + self._interval, time.monotonic() + self._interval / 4)
        while self._changed.wait(max(0.0, until - time.monotonic())):
            self._changed.clear()
            until = began + self._interval


class InventoryThread:
    """Inventory of the machine, collected in a thread: a network file system may hang."""

    def __init__(self, every: float = INVENTORY_INTERVAL) -> None:
        self._latest: Dict[str, JsonValue] = {}
        self._every = every
        self._gathered = threading.Event()
        threading.Thread(target=self._gather, daemon=True).start()

    def latest(self, wait: float = 0.0) -> Dict[str, JsonValue]:
        """Return the newest facts; wait up to ``wait`` seconds for the first."""
        self._gathered.wait(wait)
        return self._latest

    def _gather(self) -> None:
        while True:
            self._latest = inventory.collect()
            self._gathered.set()
            time.sleep(self._every)


def _listen(emit: Emit, pace: PollPace) -> None:
    """Answer pings; end the program when stdin closes or no ping arrives.

    Pings are read from the descriptor: a thread in ``sys.stdin`` would delay the interpreter's exit.
    """
    text = b""
    while select.select([0], [], [], PING_TIMEOUT)[0]:
        data = os.read(0, 4096)
        if not data:
            break
        *lines, text = (text + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "ping" in message:
                emit("clock", ping=message["ping"], time=time.time())
            if "pace" in message:
                pace.set(message["pace"])
    os._exit(0)


class Probe:
    """Polls runs and hardware, and reports changes."""

    def __init__(
        self,
        root: str,
        emit: Emit,
        *,
        devices: Optional[int] = None,
        positions: Optional[Mapping[str, Mapping[str, List[int]]]] = None,
        facts: Optional[InventoryThread] = None,
        visible: Optional[List[str]] = None,
    ) -> None:
        self._root = root
        self._emit = emit
        self._known = positions or {}
        self._runs: Dict[str, _Run] = {}
        self._processor = gauges.Processor()
        self._rates = CounterRates()
        self._accelerators = accelerators.Accelerators(devices, root=root, visible=visible)
        self._patience = ACCELERATORS_TIMEOUT
        self._facts = facts
        self._inventory: Dict[str, JsonValue] = {}
        self._last: ReportedFields = {}

    def poll(self) -> None:
        """Report what changed since the last poll, and a beat."""
        present = run_state.list_runs(self._root)
        for run_id in sorted(set(self._runs) - set(present)):
            del self._runs[run_id]
            self._emit("removed", run=run_id)
        for run_id in present:
            if run_id not in self._runs:
                self._runs[run_id] = _Run(self._root, run_id, self._emit, self._known.get(run_id, {}))
            self._runs[run_id].poll()
        report = self._accelerators.latest(wait=self._patience)
        facts = self._facts.latest(wait=min(self._patience, INVENTORY_TIMEOUT)) if self._facts is not None else {}
        self._patience = 0.0
        if facts:
            facts = {**facts, **self._accelerators.facts()}
            changed = _changed(self._inventory, facts)
            self._inventory = facts
            if changed:
                self._emit("inventory", **changed)
        now = {
            "cpu_used": round(self._processor.used(), 2),
            "accelerators": report,
            **gauges.memory(),
            **gauges.disk(self._root),
            **self._rates.read(),
        }
        news = _changed(self._last, now)
        self._last = now
        self._emit("beat", time=time.time(), **news)


def _changed(before: Mapping[str, object], now: Mapping[str, object]) -> Dict[str, object]:
    """Return the values of ``now`` that ``before`` does not have."""
    return {key: value for key, value in now.items() if key not in before or before[key] != value}


class _Run:
    """The reported state of one run, so that only changes are reported."""

    def __init__(self, root: str, run_id: str, emit: Emit, positions: Mapping[str, List[int]]) -> None:
        self._root, self._id, self._emit = root, run_id, emit
        self._paths = records.RunPaths(root, run_id)
        self._reported: ReportedFields = {}
        self._marks: Dict[str, JsonValue] = {}
        self._manifests: run_checkpoints.KnownManifests = {}
        self._checked: damaged_records.Known = {}
        self._metrics = {int(attempt): _Growing(*position, longest=CHUNK) for attempt, position in positions.items()}
        self._log = _Growing()
        self._log_of = (0, 0)  # attempt and process
        self._lease = unknown_process.UnknownProcessLease()

    def poll(self) -> None:
        """Report what changed, unreadable records as damaged, other errors as problem.

        What was reported of an unreadable record stays valid until it can be read again.
        """
        problems: List[str] = []
        news: Dict[str, object] = {}
        record_parts = (self._fence, self._ownership, self._lineage, self._store)
        for read in (self._damage, self._attempts, *record_parts, self._checkpoints):
            try:
                news.update(read())
            except records.DamagedRecordError:
                pass  # `damaged_records` names it
            except (OSError, records.RecordError) as error:
                problems.append(str(error))
        self._report(**news)
        for report in self._growing(self._reported.get("attempts", [])):
            try:
                report()
            except (OSError, records.RecordError) as error:
                problems.append(str(error))
        self._report(problem="; ".join(dict.fromkeys(problems)))

    def _report(self, **news: object) -> None:
        changed = {
            key: value for key, value in news.items() if key not in self._reported or self._reported[key] != value
        }
        if changed:
            self._reported.update(changed)
            self._emit("run", run=self._id, **changed)

    def _attempts(self) -> ReportedFields:
        numbers = run_state.attempts(self._paths)
        newest, processes = run_state.newest_processes(self._paths, numbers)
        answer = {"attempts": numbers, "attempt": newest}
        path = self._paths.attempt(newest)
        try:
            state = run_state.first_running(path, processes)
            ended = run_state.ended_without_status(path, processes)
            status = None if state.status is None else state.status.to_json()
            failed = None if state.running else run_state.first_failure(path, processes)
            return {
                **answer,
                "ended_without_status": ended,
                "status": status,
                "running": state.running,
                "unproven": "" if state.running or not newest else self._lease.host(path),
                "job_remark": job_remark.remark(path, state.status) if newest else "",
                "exit": None if failed is None else failed.to_json(),
            }
        except records.DamagedRecordError:
            return answer

    def _damage(self) -> Dict[str, JsonValue]:
        return {"damaged": damaged_records.find(self._paths, self._checked)}

    def _fence(self) -> Dict[str, object]:
        return {"fence": self._record("fence", self._paths.fence, records.Fence)}

    def _ownership(self) -> Dict[str, object]:
        """Text of the signed records, read again only if the file changed."""
        mark = damaged_records.signature(self._paths.ownership)
        if mark is None or mark != self._marks.get("ownership") or "ownership" not in self._reported:
            text = run_state.read_ownership(self._paths)
            self._marks["ownership"] = mark
            return {"ownership": text}
        return {"ownership": self._reported["ownership"]}

    def _lineage(self) -> Dict[str, object]:
        return {"lineage": self._record("lineage", self._paths.lineage, records.Lineage)}

    def _store(self) -> Dict[str, object]:
        return {"store": self._record("store", self._paths.store_file, records.Store)}

    def _checkpoints(self) -> Dict[str, JsonValue]:
        return {"checkpoints": [entry.to_json() for entry in run_checkpoints.checkpoints(self._paths, self._manifests)]}

    def _record(self, name: str, path: str, kind: Any) -> object:
        """JSON of a record, read again only if the file changed."""
        mark = damaged_records.signature(path)
        if mark is None:
            return None
        if name not in self._reported or self._marks.get(name) != mark:
            record = kind.read_or_none(path)
            self._marks[name] = mark
            return None if record is None else record.to_json()
        return self._reported[name]

    def _growing(self, numbers: List[int]) -> Iterator[Callable[[], None]]:
        """Yield one function per growing file, which reports its new lines."""
        for number in numbers:
            yield functools.partial(self._report_metrics, number)
        if numbers:
            yield functools.partial(self._report_log, numbers)

    def _report_metrics(self, number: int) -> None:
        growing = self._metrics.setdefault(number, _Growing(longest=CHUNK))
        for offset, data in growing.read(self._paths.attempt(number).metrics):
            self._emit(
                "metrics",
                run=self._id,
                attempt=number,
                inode=growing.inode,
                offset=offset,
                end=growing.offset,
                text=data.decode(errors="replace"),
            )

    def _report_log(self, numbers: List[int]) -> None:
        """Report the log of this host's first process."""
        path = self._paths.attempt(numbers[-1])
        log_of = numbers[-1], next(iter(run_state.processes(path)), 0)
        if log_of != self._log_of:
            self._log, self._log_of = _Growing(tail=LOG_TAIL), log_of
        for offset, data in self._log.read(path.log(log_of[1])):
            self._emit(
                "log",
                run=self._id,
                attempt=log_of[0],
                process=log_of[1],
                first=offset == self._log.begin,
                offset=offset,
                end=self._log.offset,
                text=data.decode(errors="replace"),
            )


class _Growing:
    """A growing file that is read by complete lines.

    ``tail``: begin at most so many bytes before the end, at the start of a line. ``longest``: limit of a line in bytes,
    past which the file counts as damaged; 0: no limit.
    """

    def __init__(self, inode: int = 0, offset: int = 0, tail: int = 0, longest: int = 0) -> None:
        self.inode, self.offset = inode, offset
        self.begin = 0  # offset of the first reported byte
        self._tail, self._longest = tail, longest

    def read(self, path: str) -> Iterator[Tuple[int, bytes]]:
        """Yield (offset, bytes) of new complete lines.

        Another file of the name, or a shorter one, is read from its beginning.
        """
        mark = damaged_records.signature(path)
        if mark is None:
            return
        inode, size, _ = mark
        fresh = inode != self.inode or size < self.offset
        if not fresh and size == self.offset:
            return
        with records.open_regular(path) as file:
            if fresh:
                self.inode = os.fstat(file.fileno()).st_ino
                self.begin = self.offset = self._beginning(file, size)
            file.seek(self.offset)
            while True:
                data = file.read(CHUNK)
                complete = data[: data.rfind(b"\n") + 1]
                if not complete and self._longest and len(data) >= self._longest:
                    raise records.DamagedRecordError("{}: a line of more than {} bytes".format(path, self._longest))
                if not complete and len(data) == CHUNK:
                    complete = data  # longer than any line that is reported in one piece
                if not complete:
                    return
                at, self.offset = self.offset, self.offset + len(complete)
                file.seek(self.offset)
                yield at, complete

    def _beginning(self, file: BinaryIO, size: int) -> int:
        if not self._tail or size <= self._tail:
            return 0
        file.seek(size - self._tail)
        data = file.read(self._tail)
        return size - self._tail + data.find(b"\n") + 1
