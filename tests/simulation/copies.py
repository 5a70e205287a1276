"""Copies between simulated hosts, in place of streams over SSH.

A copy goes file by file and is verified. Links and machines fail in the middle of it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from midstream.errors import ConnectionLostError
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import TransferError
from midstream.transfer.report import CopyReport, Progress
from midstream_core import records
from simulation.links import LATENCY, SimulatedHost
from simulation.machines import SimulatedProcess
from simulation.scheduler import SCHEDULER

BANDWIDTH = 1000.0  # bytes a second: a checkpoint takes a second or so


def copy_tree(
    source: Endpoint,
    target: Endpoint,
    *,
    manifest_name: str = records.MANIFEST,
    progress: Callable[[Progress], None] | None = None,
    **_: Any,
) -> CopyReport:
    """Copy a tree object by object, its manifest last."""
    began = SCHEDULER.now
    text = _on(source, lambda: _read(source.directory, manifest_name), manifest_name)
    entries = records.Manifest.from_json(records.parse_json(text, manifest_name), str(source)).object_entries
    total, sent, skipped = sum(entry.size for entry in entries), 0, []
    for number, entry in enumerate(entries):
        present = _on(target, lambda entry=entry: _digest(target.directory, entry.path) == entry.sha256, "look")
        if present:
            skipped.append(entry.path)
            continue
        data = _on(source, lambda entry=entry: _read(source.directory, entry.path), entry.path)
        SCHEDULER.park(len(data) / BANDWIDTH)
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise TransferError(f"{source}: {entry.path} is damaged", "", entry.path)
        _on(target, lambda entry=entry, data=data: _write(target.directory, entry.path, data), entry.path)
        sent += len(data)
        if progress is not None:
            progress(Progress(sent, total, number + 1, len(entries), entry.path, BANDWIDTH, 0.0))
    _on(target, lambda: _write(target.directory, manifest_name, text), manifest_name)
    return CopyReport(
        len(entries),
        len(entries) - len(skipped),
        total,
        sent,
        sent,
        SCHEDULER.now - began,
        tuple(skipped),
        (),
        ("simulated",),
    )


def send_files(
    source: Endpoint,
    target: Endpoint,
    files: Sequence[Any],
    meter: object,
    *,
    explain: Callable[[str, str], Exception],
    **_: object,
) -> None:
    """Send files of a history."""
    del meter
    for entry in files:
        begin, size = entry.get("offset", 0), entry["size"]
        data = _on(
            source, lambda e=entry, b=begin, s=size: _read(source.directory, e["path"])[b : b + s], entry["path"]
        )
        SCHEDULER.park(len(data) / BANDWIDTH / 100)
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise explain(entry["path"], "another hash")
        _on(target, lambda e=entry, d=data: _write(target.directory, e["path"], d), entry["path"])


def _on(endpoint: Endpoint, work: Callable[[], Any], what: str) -> Any:
    """Do something on an endpoint's machine, in a process of it."""
    host = endpoint.host
    assert isinstance(host, SimulatedHost), "only simulated hosts copy"
    host.connect()
    _, fault = host._network.begin(host.name, f"copy {what}")
    SCHEDULER.park(LATENCY)
    answers: list[Any] = []
    if fault == "request lost" or not host._network.reachable(host.name):
        raise host.lost()
    process = SimulatedProcess(host._machine, lambda: answers.append(work()), f"copy {what}")
    process.ended.wait()
    if fault or not host._network.reachable(host.name) or (process.exit_code and process.exit_code < 0):
        raise host.lost()
    if not answers:
        raise ConnectionLostError(f"{host.name}: {process.errors.decode()[-300:]}")
    return answers[0]


def _read(directory: str, path: str) -> bytes:
    with open(os.path.join(directory, path), "rb") as file:
        return file.read()


def _digest(directory: str, path: str) -> str:
    try:
        return hashlib.sha256(_read(directory, path)).hexdigest()
    except OSError:
        return ""


def _write(directory: str, path: str, data: bytes) -> None:
    full = os.path.join(directory, path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    records.write_bytes(full, data)
