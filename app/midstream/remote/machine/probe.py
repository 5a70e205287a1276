"""What goes on on this host, told as it happens: one JSON object a line on stdout, until stdin closes.

``hello``    the machine's names, once
``run``      of one run whatever changed since the last such line: fence, lineage, store, attempts, attempt, status,
             alive, checkpoints, damaged ({file: what is wrong with it}), trouble
``metrics``  whole lines of an attempt's metrics.jsonl from byte ``offset`` to ``end``; offset 0 starts the file anew
``log``      text that the newest attempt's log grew by; ``first`` where it is the beginning of what is told
``gone``     the run's directory is no longer there
``inventory`` what the machine is made of and who uses its accelerators, whenever that changed
``beat``     the end of each look: the clock (UTC seconds), and what changed of processor, memory, disk, accelerators
``clock``    the answer to a ping

stdin takes one JSON object a line: ``{"ping": n}``, and ``{"pace": seconds}`` between two looks.
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

from midstream.remote.machine import accelerators, gauges, inventory
from midstream.remote.runs import damaged_records, run_state
from midstream_engine import records

CHUNK = 1 << 18  # bytes of metrics or log in one line
LOG_TAIL = 1 << 15  # bytes of a log that are told when it is first seen
FIRST_ACCELERATORS = 8.0  # seconds that the first beat waits for nvidia-smi
FIRST_FACTS = 2.0  # seconds that it waits for the inventory
INVENTORY = 30.0  # seconds between two looks at what seldom changes
SILENCE = 120.0  # seconds without a ping after which nobody is listening: a lost connection may never close stdin

Emit = Callable[..., None]


def main(
    root: str,
    interval: float = 1.0,
    devices: Optional[int] = None,
    known: Optional[Mapping[str, Mapping[str, List[int]]]] = None,
) -> int:
    """Tell of the runs under ``root`` every ``interval`` seconds. ``known`` is what the operator has of metrics
    already: run -> attempt -> [inode, bytes]."""
    writing = threading.Lock()

    def emit(event: str, **fields: Any) -> None:
        line = json.dumps(dict(fields, event=event)).encode() + b"\n"
        with writing:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()

    pace = Pace(interval)
    threading.Thread(target=_listen, args=(emit, pace), daemon=True).start()
    probe = Probe(root, emit, devices=devices, known=known, facts=Facts())
    try:
        emit("hello", **gauges.identity())
        while True:
            began = time.monotonic()
            probe.look()
            pace.rest(began)
    except BrokenPipeError:
        os._exit(0)


class Pace:
    """The time between the beginnings of two looks, which whoever listens may change."""

    def __init__(self, interval: float):
        self._interval = interval
        self._changed = threading.Event()

    def set(self, interval: float) -> None:
        self._interval = interval
        self._changed.set()

    def rest(self, began: float) -> None:
        self._changed.clear()
        # On a slow disk a look may take longer than the interval: that is no reason to look without rest.
        until = max(began + self._interval, time.monotonic() + self._interval / 4)
        while self._changed.wait(max(0.0, until - time.monotonic())):
            self._changed.clear()
            until = began + self._interval


class Facts:
    """The machine's inventory, gathered in the background: a network file system that hangs holds nothing else up."""

    def __init__(self, every: float = INVENTORY):
        self._latest: Dict[str, Any] = {}
        self._every = every
        self._gathered = threading.Event()
        threading.Thread(target=self._gather, daemon=True).start()

    def latest(self, wait: float = 0.0) -> Dict[str, Any]:
        """Waits up to ``wait`` seconds for the first ones."""
        self._gathered.wait(wait)
        return self._latest

    def _gather(self) -> None:
        while True:
            self._latest = inventory.collect()
            self._gathered.set()
            time.sleep(self._every)


def _listen(emit: Emit, pace: Pace) -> None:
    """Answer pings; end the program when stdin closes or falls silent. The descriptor is read, because a thread in
    ``sys.stdin`` would hold up the interpreter's end."""
    text = b""
    while select.select([0], [], [], SILENCE)[0]:
        data = os.read(0, 4096)
        if not data:
            break
        *lines, text = (text + data).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if "ping" in told:
                emit("clock", ping=told["ping"], time=time.time())
            if "pace" in told:
                pace.set(told["pace"])
    os._exit(0)


class Probe:
    """Looks again and again, and tells what is new."""

    def __init__(
        self,
        root: str,
        emit: Emit,
        *,
        devices: Optional[int] = None,
        known: Optional[Mapping[str, Mapping[str, List[int]]]] = None,
        facts: Optional[Facts] = None,
    ):
        self._root = root
        self._emit = emit
        self._known = known or {}
        self._runs: Dict[str, _Run] = {}
        self._processor = gauges.Processor()
        self._accelerators = accelerators.Accelerators(devices)
        self._patience = FIRST_ACCELERATORS
        self._facts = facts
        self._inventory: Dict[str, Any] = {}
        self._last: Dict[str, Any] = {}

    def look(self) -> None:
        """One look: lines for what changed, and a beat."""
        present = run_state.list_runs(self._root)
        for run_id in sorted(set(self._runs) - set(present)):
            del self._runs[run_id]
            self._emit("gone", run=run_id)
        for run_id in present:
            if run_id not in self._runs:
                self._runs[run_id] = _Run(self._root, run_id, self._emit, self._known.get(run_id, {}))
            self._runs[run_id].look()
        found = self._accelerators.latest(wait=self._patience)
        facts = self._facts.latest(wait=min(self._patience, FIRST_FACTS)) if self._facts is not None else {}
        self._patience = 0.0
        if facts:
            facts = {**facts, **self._accelerators.facts()}
            if facts != self._inventory:
                self._inventory = facts
                self._emit("inventory", **facts)
        now = {
            "cpu_used": round(self._processor.used(), 2),
            "accelerators": found,
            **gauges.memory(),
            **gauges.disk(self._root),
        }
        news = {key: value for key, value in now.items() if key not in self._last or self._last[key] != value}
        self._last = now
        self._emit("beat", time=time.time(), **news)


class _Run:
    """One run: what was told of it, so that only news is."""

    def __init__(self, root: str, run_id: str, emit: Emit, known: Mapping[str, List[int]]):
        self._root, self._id, self._emit = root, run_id, emit
        self._paths = records.RunPaths(root, run_id)
        self._told: Dict[str, Any] = {}
        self._marks: Dict[str, Any] = {}
        self._manifests: Dict[str, Any] = {}
        self._checked: damaged_records.Known = {}
        self._metrics = {int(attempt): _Growing(*place, longest=CHUNK) for attempt, place in known.items()}
        self._log = _Growing()
        self._log_of = 0

    def look(self) -> None:
        """What cannot be read is reported as damaged, or as trouble; of that, what was reported before stands until it
        can be read again."""
        troubles: List[str] = []
        news: Dict[str, Any] = {}
        for part in (self._damage, self._attempts, self._fence, self._lineage, self._store, self._checkpoints):
            try:
                news.update(part())
            except records.Damaged:
                pass  # `damage` names it
            except (OSError, records.RecordError) as error:
                troubles.append(str(error))
        self._tell(**news)
        for part in self._growing(self._told.get("attempts", [])):
            try:
                part()
            except (OSError, records.RecordError) as error:
                troubles.append(str(error))
        self._tell(trouble="; ".join(dict.fromkeys(troubles)))

    def _tell(self, **news: Any) -> None:
        changed = {key: value for key, value in news.items() if key not in self._told or self._told[key] != value}
        if changed:
            self._told.update(changed)
            self._emit("run", run=self._id, **changed)

    def _attempts(self) -> Dict[str, Any]:
        numbers = run_state.attempts(self._paths)
        newest = run_state.newest_started(self._paths, numbers)
        found = {"attempts": numbers, "attempt": newest}
        try:
            state = run_state.status(self._root, self._id, newest) if newest else {"status": None, "running": False}
            return {**found, "wordless": run_state.wordless(self._paths.attempt(newest)), **state}
        except records.Damaged:
            return found

    def _damage(self) -> Dict[str, Any]:
        return {"damaged": damaged_records.find(self._paths, self._checked)}

    def _fence(self) -> Dict[str, Any]:
        return {"fence": self._record("fence", self._paths.fence, records.Fence)}

    def _lineage(self) -> Dict[str, Any]:
        return {"lineage": self._record("lineage", self._paths.lineage, records.Lineage)}

    def _store(self) -> Dict[str, Any]:
        return {"store": self._record("store", self._paths.store_file, records.Store)}

    def _checkpoints(self) -> Dict[str, Any]:
        return {"checkpoints": run_state.checkpoints(self._paths, self._manifests)}

    def _record(self, name: str, path: str, kind: Any) -> Any:
        """The file's value, read again only where it changed."""
        mark = run_state.signature(path)
        if mark is None:
            return None
        if name not in self._told or self._marks.get(name) != mark:
            record = kind.read_or_none(path)
            self._marks[name] = mark
            return None if record is None else record.to_json()
        return self._told[name]

    def _growing(self, numbers: List[int]) -> Iterator[Callable[[], None]]:
        """What tells of one growing file each."""
        for number in numbers:
            yield functools.partial(self._tell_metrics, number)
        if numbers:
            yield functools.partial(self._tell_log, numbers)

    def _tell_metrics(self, number: int) -> None:
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

    def _tell_log(self, numbers: List[int]) -> None:
        if numbers and numbers[-1] != self._log_of:
            self._log, self._log_of = _Growing(tail=LOG_TAIL), numbers[-1]
        if numbers:
            for offset, data in self._log.read(self._paths.attempt(numbers[-1]).log()):
                text = data.decode(errors="replace")
                self._emit("log", run=self._id, attempt=numbers[-1], first=offset == self._log.begin, text=text)


class _Growing:
    """A file that is appended to, read by whole lines as it grows. ``tail``: begin at most so many bytes before its
    end, at the beginning of a line. ``longest``: bytes of a line, past which the file is damaged; 0 for any."""

    def __init__(self, inode: int = 0, offset: int = 0, tail: int = 0, longest: int = 0):
        self.inode, self.offset = inode, offset
        self.begin = 0  # where it began to be told
        self._tail, self._longest = tail, longest

    def read(self, path: str) -> Iterator[Tuple[int, bytes]]:
        """Yields (offset, bytes) of whole lines that are new. Another file of the name, or a shorter one, is told
        from its beginning."""
        mark = run_state.signature(path)
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
                whole = data[: data.rfind(b"\n") + 1]
                if not whole and self._longest and len(data) >= self._longest:
                    raise records.Damaged("{}: a line of more than {} bytes".format(path, self._longest))
                if not whole and len(data) == CHUNK:
                    whole = data  # a line longer than any that is worth keeping together
                if not whole:
                    return
                at, self.offset = self.offset, self.offset + len(whole)
                file.seek(self.offset)
                yield at, whole

    def _beginning(self, file: BinaryIO, size: int) -> int:
        if not self._tail or size <= self._tail:
            return 0
        file.seek(size - self._tail)
        data = file.read(self._tail)
        return size - self._tail + data.find(b"\n") + 1
