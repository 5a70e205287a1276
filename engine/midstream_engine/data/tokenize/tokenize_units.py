"""Tokenizing of units in order, with one process per CPU.

The result does not depend on the number of processes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from midstream_engine.data.errors import DataError
from midstream_engine.data.tokenize import units
from midstream_engine.data.tokenize.progress_bar import ProgressBar
from midstream_engine.data.tokenize.tokenizer import Tokenizer
from midstream_engine.data.tokenize.units import Finished, Unit

log = logging.getLogger(__name__)
_AHEAD = 4  # units per process that run or wait for their turn
_WORTH = 64 << 20  # bytes of text from which several processes are faster than one


@dataclass(frozen=True)
class Task:
    """Settings of all units.

    ``name`` and ``eos_token`` load ``tokenizer`` in another process.
    """

    directory: str  # of the finished units
    tokenizer: Tokenizer
    name: str
    eos_token: str
    text_key: str
    max_bytes: int | None

    def to_json(self) -> dict[str, Any]:
        """Return the settings for a worker."""
        return {
            "directory": self.directory,
            "id": self.tokenizer.id,
            "tokenizer": self.name,
            "eos_token": self.eos_token,
            "text_key": self.text_key,
            "max_bytes": self.max_bytes,
        }


def processes_for(work: Sequence[Unit], task: Task, requested: int) -> int:
    """Return the number of processes; 0 means this process.

    The number is ``requested``; for 0 it is one per CPU if that is faster.
    """
    if requested:
        return min(requested, len(work))
    size = sum(unit.size for unit in work) or _WORTH
    if len(work) < 2 or min(size, task.max_bytes or size) < _WORTH:
        return 0
    return min(len(os.sched_getaffinity(0)), len(work))


def tokenize(
    work: Sequence[Unit], task: Task, requested: int = 0
) -> Generator[tuple[np.ndarray, np.ndarray], None, None]:
    """Yield each unit's tokens [tokens] and document lengths (int64 [documents]).

    Units are in order, up to ``max_bytes``. Finished units are read, not tokenized again.

    Raises:
        DataError: Text cannot be read, or a process has ended. Finished units stay.
    """
    progress = ProgressBar(len(work), sum(unit.size for unit in work))
    total = 0
    with contextlib.ExitStack() as stack:
        stack.callback(progress.close)
        made = stack.enter_context(contextlib.closing(_made(work, task, processes_for(work, task, requested))))
        for unit, (record, reused) in zip(work, made, strict=True):
            tokens, lengths = _read(unit, record, task)
            progress.add(unit.size, record.tokens, reused)
            if task.max_bytes is None:
                yield tokens, lengths[:, 1]
                continue
            totals = total + np.cumsum(lengths[:, 0])
            # The first document is used whatever its length.
            fits = (totals <= task.max_bytes) | (totals == lengths[:, 0])
            kept = len(fits) if fits.all() else int(np.argmin(fits))
            yield tokens[: int(lengths[:kept, 1].sum())], lengths[:kept, 1]
            if kept < len(fits):
                break
            total = int(totals[-1]) if len(totals) else total
    if progress.reused:
        log.info("%d of %d shards were already finished", progress.reused, progress.units)


def _read(unit: Unit, record: Finished, task: Task) -> tuple[np.ndarray, np.ndarray]:
    dtype = units.token_dtype(task.tokenizer)
    result = units.read(task.directory, unit.number, record, dtype)
    if result is None:
        log.warning("shard %d is damaged and is tokenized again", unit.number)
        units.forget(task.directory, unit.number)
        record = units.tokenize(unit, task.directory, task.tokenizer, task.text_key, task.max_bytes)
        result = units.read(task.directory, unit.number, record, dtype)
    if result is None:
        raise DataError(f"{task.directory}: shard {unit.number} differs from what was written")
    return result


def _made(work: Sequence[Unit], task: Task, processes: int) -> Generator[tuple[Finished, bool], None, None]:
    """The record of each unit in order, and whether it was there before."""
    if not processes:
        for unit in work:
            before = units.finished(task.directory, unit.number)
            yield (
                before or units.tokenize(unit, task.directory, task.tokenizer, task.text_key, task.max_bytes),
                before is not None,
            )
        return
    with _Processes(task, processes) as pool:
        pending: deque[Future[tuple[Finished, bool]]] = deque()
        for unit in work:
            pending.append(pool.submit(unit))
            if len(pending) >= _AHEAD * processes:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


class _Processes:
    """Worker processes, each used by one thread at a time and started on first use."""

    def __init__(self, task: Task, count: int) -> None:
        self._task = task
        self._idle: queue.LifoQueue[subprocess.Popen[str] | None] = queue.LifoQueue()
        for _ in range(count):
            self._idle.put(None)
        self._started: list[subprocess.Popen[str]] = []
        self._lock = threading.Lock()
        self._closed = False
        self._threads = ThreadPoolExecutor(count, "tokenize")

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._started:
            with contextlib.suppress(BrokenPipeError):
                _pipe(process.stdin).close()  # ends it
        for process in self._started:
            process.wait()
        self._threads.shutdown()
        for process in self._started:
            _pipe(process.stdout).close()

    def submit(self, unit: Unit) -> Future[tuple[Finished, bool]]:
        """Tokenize a unit; its record, and whether it was already finished."""
        return self._threads.submit(self._run, unit)

    def _run(self, unit: Unit) -> tuple[Finished, bool]:
        before = units.finished(self._task.directory, unit.number)
        if before is not None:
            return before, True
        idle = self._idle.get()
        try:
            process = idle or self._start()
        except BaseException:
            self._idle.put(None)  # for the next unit
            raise
        try:
            answer = self._exchange(process, json.dumps(unit.to_json()))
        finally:
            self._idle.put(process)
        if not answer:
            process.wait()
            raise DataError(
                f"data: a tokenizing process ended with {process.returncode} at {unit.pieces[0].source.path} "
                "(-9: out of memory?) (hint: start again; finished shards are reused)"
            )
        value = json.loads(answer)
        if "error" in value:
            raise DataError(value["error"])
        return Finished(**value["done"]), False

    def _start(self) -> subprocess.Popen[str]:
        # The engine may run from a bundle that is not installed: the child gets the same path.
        path = os.pathsep.join(filter(None, sys.path))
        with self._lock:
            if self._closed:
                raise DataError("data: tokenizing was ended")
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "midstream_engine.data.tokenize.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
                start_new_session=True,  # Ctrl-C reaches the parent alone, which ends its children
            )
            self._started.append(process)
        self._exchange(process, json.dumps(self._task.to_json()), wait=False)
        return process

    @staticmethod
    def _exchange(process: subprocess.Popen[str], line: str, wait: bool = True) -> str:
        """Send a line; return the answer, empty if the process has ended."""
        try:
            _pipe(process.stdin).write(line + "\n")
            _pipe(process.stdin).flush()
        except BrokenPipeError:
            return ""
        return _pipe(process.stdout).readline() if wait else ""


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
