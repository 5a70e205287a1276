"""The messages of one save between the processes of a group."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np

from midstream_core.attempt.errors import CheckpointError
from midstream_core.attempt.save_fence import FenceRejectedError
from midstream_core.json_types import JsonObject
from midstream_core.records import Manifest, ObjectEntry
from midstream_engine.checkpoint.boxes import Box
from midstream_engine.checkpoint.packed_arrays import pack, unpack
from midstream_engine.checkpoint.saving.save_group import SaveGroup
from midstream_engine.processes.coordinator_client import PeerLostError


class SaveRendezvous:
    """The messages of one save of a group.

    A failure of one process is raised by all, with the number of that one.

    Attributes:
        prepared: The directory of this file system is, or is being, emptied for this save. Before that it may have the
            share of an earlier save of the same step, which process 0 may have committed.
        may_be_committed: Process 0 may have committed the share of this save: it is stored, and process 0 has not
            reported that the checkpoint is not committed.
    """

    def __init__(self, directory: str, group: SaveGroup) -> None:
        self._directory, self._group, self._client = directory, group, group.client
        self._prefix = f"save-{group.sequence}-"
        self._failure_received = self._ready_sent = False
        self.prepared = self.may_be_committed = False

    @property
    def share_stays(self) -> bool:
        """Whether a failed save removes nothing from this file system."""
        return not self.prepared or self.may_be_committed

    def send_ready(self) -> None:
        """Report that the directory of this file system is empty.

        The processes that share it may then write to it. Process 0 reports to all, see `await_leader`.
        """
        group = self._group
        for process in range(group.count) if group.leads else group.local_processes:
            if process != group.process:
                self._send("ready", b"", process)
        self._ready_sent = True

    def await_ready(self) -> None:
        """Wait until the directory of this file system is empty."""
        self._receive("ready", self._group.local_processes[0])

    def await_leader(self) -> None:
        """Wait until process 0 has found that it committed no earlier save of this step."""
        self._receive("ready", 0)

    def send_part(self, objects: Sequence[ObjectEntry], pieces: Sequence[tuple[str, Box, np.ndarray]]) -> None:
        """Send process 0 the list of objects written here and pieces of other arrays."""
        packed = {f"{number}": data for number, (_, _, data) in enumerate(pieces)}
        listed = {
            "objects": [entry.to_json() for entry in objects],
            "pieces": [[name, [list(side) for side in box]] for name, box, _ in pieces],
        }
        self._send("part", _joined(listed, pack(packed)), 0)

    def receive_parts(self) -> tuple[dict[int, list[ObjectEntry]], list[tuple[str, Box, np.ndarray]]]:
        """Return what each other process wrote, and the pieces that they sent.

        For process 0.
        """
        objects: dict[int, list[ObjectEntry]] = {}
        pieces: list[tuple[str, Box, np.ndarray]] = []
        for process in range(1, self._group.count):
            listed, packed = _split(self._receive("part", process))
            objects[process] = [ObjectEntry.from_json(entry, f"part {process}") for entry in listed["objects"]]
            arrays = unpack(packed)
            for number, (name, box) in enumerate(listed["pieces"]):
                pieces.append((name, tuple((start, stop) for start, stop in box), arrays[f"{number}"]))
        return objects, pieces

    def share(self, files: Mapping[str, bytes]) -> None:
        """Send the small objects to the first process of each file system.

        Returns when all have stored them.
        """
        others = self._group.leaders[1:]
        payload = _joined({"sizes": {path: len(data) for path, data in files.items()}}, b"".join(files.values()))
        for process in others:
            self._send("rest", payload, process)
        for process in others:
            self._receive("stored", process)

    def receive_shared(self) -> dict[str, bytes]:
        """Return the small objects that process 0 shares."""
        listed, data = _split(self._receive("rest", 0))
        files: dict[str, bytes] = {}
        begin = 0
        for path, size in listed["sizes"].items():
            files[path] = data[begin : begin + size]
            begin += size
        return files

    def send_stored(self) -> None:
        """Report to process 0 that the small objects are stored."""
        self.may_be_committed = True
        self._send("stored", b"", 0)

    def send_committed(self, manifest: Manifest) -> None:
        """Send the committed manifest to all others. For process 0."""
        payload = json.dumps(manifest.to_json()).encode()
        for process in range(1, self._group.count):
            self._send("outcome", payload, process)

    def receive_committed(self) -> Manifest:
        """Return the manifest that process 0 has committed."""
        return Manifest.from_json(json.loads(self._receive("outcome", 0)), "manifest from process 0")

    def abort(self, error: BaseException, *, committed: bool = False) -> None:
        """Report that this process ends the save.

        Process 0 reports to all, others to process 0 and to the processes that wait for them. ``committed``: process 0
        may have committed the checkpoint, so the others keep their shares.
        """
        kind = "fenced" if isinstance(error, FenceRejectedError) else "failed"
        text = str(error).partition("\n")[0]
        message = text if text.startswith("process ") else f"process {self._group.process}: {text}"
        group = self._group
        awaited = group.leads_locally and not self._ready_sent  # by processes that do not receive from process 0 yet
        if self._failure_received and not group.leads and not awaited:
            return  # the others have received it too
        others = range(group.count) if group.leads else {0, *(group.local_processes if group.leads_locally else ())}
        for process in set(others) - {group.process}:
            # Under every name, because the message that the other waits for is unknown.
            for name in ("ready", "part", "rest", "stored", "outcome"):
                failure = {"kind": kind, "message": message, "committed": committed}
                self._post(name, b"!" + json.dumps(failure).encode(), process)

    def close(self) -> None:
        """Remove the messages of this save from the client."""
        self._client.discard(self._prefix)

    def _send(self, name: str, payload: bytes, to: int) -> None:
        self._post(name, b" " + payload, to)

    def _post(self, name: str, payload: bytes, to: int) -> None:
        with self._named():
            self._client.send(self._prefix + name, payload, to)

    def _receive(self, name: str, sender: int) -> bytes:
        with self._named():
            payload = self._client.receive(self._prefix + name, sender, self._group.timeout)
        if payload[:1] == b" ":
            return payload[1:]
        self._failure_received = True
        failure = json.loads(payload[1:])
        self.may_be_committed = self.may_be_committed and failure.get("committed", True)
        raise (FenceRejectedError if failure["kind"] == "fenced" else CheckpointError)(failure["message"])

    @contextlib.contextmanager
    def _named(self) -> Generator[None, None, None]:
        try:
            yield
        except PeerLostError as error:
            raise CheckpointError(f"{self._directory}: {error}: not saved") from error


def abort_save(group: SaveGroup, error: BaseException) -> None:
    """Report that this process cannot begin its share of a save; raise ``error``.

    The report goes to the other processes of the group.
    """
    SaveRendezvous("", group).abort(error)
    raise error


def _joined(listed: JsonObject, data: bytes) -> bytes:
    text = json.dumps(listed).encode()
    return len(text).to_bytes(8, "big") + text + data


def _split(payload: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(payload[:8], "big")
    return json.loads(payload[8 : 8 + length]), payload[8 + length :]
