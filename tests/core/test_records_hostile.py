"""Records of an untrusted host: wrong values are refused by file and field."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from midstream_core import records

FENCE: dict[str, Any] = {"epoch": 2, "owner": "b", "sealed_step": 10, "seals": [{"epoch": 1, "step": 10}]}
STATUS: dict[str, Any] = {
    "state": "training", "step": 5, "process": 0, "boot_id": "x", "pid": 7, "start_ticks": 1, "heartbeat": 1.5,
    "checkpoint": "step-4-a001", "devices": [{"kind": "cpu", "platform": "cpu", "memory_bytes": None}],
    "versions": {"jax": "1"}, "data_digests": ["ab12"],
}  # fmt: skip
ENTRY: dict[str, Any] = {
    "attempt": 1, "epoch": 1, "target": "a", "devices": 2, "device_kind": "cpu", "first_step": 0,
}  # fmt: skip
LINEAGE: dict[str, Any] = {"run_id": "r", "attempts": [ENTRY]}
MANIFEST: dict[str, Any] = {
    "format": records.FORMAT, "version": 2, "run_id": "r", "step": 4, "attempt": 1, "epoch": 1, "created": 0.0,
    "root_digest": "d", "arrays": [{"name": "w", "axes": ["a"], "shape": [2], "dtype": "float32", "grid": [1],
    "objects": ["w/0"]}], "objects": [{"path": "w/0", "size": 8, "sha256": "h"}],
    "hosts": [{"host": "a", "processes": [0], "directory": "/x"}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (records.Fence, {**FENCE, "seals": [FENCE["seals"][0], None]}, "seals[1]: expected an object, found null"),
        (records.Fence, {**FENCE, "epoch": "7"}, "epoch: expected an integer, found a string"),
        (records.Fence, {**FENCE, "epoch": True}, "epoch: expected an integer, found a boolean"),
        (records.Fence, {**FENCE, "epoch": 2**63}, "epoch: the integer is too large"),
        (records.Fence, {**FENCE, "epoch": -1}, "epoch: expected an integer from 0 on, found a negative one"),
        (records.Fence, {**FENCE, "seals": {"1": 10}}, "seals: expected a list, found an object"),
        (records.Fence, {"owner": "b"}, "lacks epoch"),
        (records.Fence, [], "expected an object, found a list"),
        (records.Status, {**STATUS, "step": "5"}, "step: expected an integer, found a string"),
        (records.Status, {**STATUS, "step": -5}, "step: expected an integer from 0 on"),
        (records.Status, {**STATUS, "heartbeat": float("nan")}, "heartbeat: expected a finite number"),
        (records.Status, {**STATUS, "heartbeat": 10**400}, "heartbeat: expected a finite number"),
        (records.Status, {**STATUS, "checkpoint": "../../x"}, "checkpoint: '../../x' is not a checkpoint's name"),
        (records.Status, {**STATUS, "data_digests": ["ok", "../x"]}, "data_digests[1]: '../x' is not a digest"),
        (records.Status, {**STATUS, "devices": [None]}, "devices[0]: expected an object, found null"),
        (records.Status, {**STATUS, "versions": {"jax": 1}}, "versions.jax: expected a string, found an integer"),
        (records.Status, {**STATUS, "message": "x" * 70000}, "message: the string has 70000 characters"),
        (records.Status, {**STATUS, "message": "\ud800"}, "message: the string cannot be written as UTF-8"),
        (records.Lineage, {**LINEAGE, "attempts": [{**ENTRY, "attempt": None}]}, "attempts[0].attempt: expected"),
        (records.Lineage, {**LINEAGE, "run_id": "a\nb"}, "run_id: 'a\\nb' is not a run id"),
        (records.Pin, {"checkpoint": "/etc", "expires": 1}, "checkpoint: '/etc' is not a checkpoint's name"),
        (records.Command, {"action": "stop", "migration": "../x"}, "migration: '../x' is not a run id"),
        (records.Manifest, {**MANIFEST, "objects": [None]}, "objects[0]: expected an object, found null"),
        (records.Manifest, {**MANIFEST, "arrays": [{"name": "w"}]}, "arrays[0]: lacks axes, shape, dtype"),
        (records.Manifest, {**MANIFEST, "objects": [{"path": "../w", "size": 1, "sha256": ""}]}, "leaves"),
        (records.Manifest, {**MANIFEST, "objects": [{"path": "a\n", "size": 1, "sha256": ""}]}, "leaves"),
    ],
)  # fmt: skip
def test_wrong_value_error_names_file_and_field(kind: Any, value: Any, message: str) -> None:
    with pytest.raises(records.RecordError) as caught:
        kind.from_json(value, "host: file.json")
    assert str(caught.value).startswith("host: file.json: ")
    assert message in str(caught.value)


def test_records_round_trip_json() -> None:
    for kind, value in (
        (records.Fence, FENCE), (records.Status, STATUS), (records.Lineage, LINEAGE), (records.Manifest, MANIFEST),
    ):  # fmt: skip
        record = kind.from_json(value)
        assert kind.from_json(json.loads(json.dumps(record.to_json()))) == record
        assert kind.from_json({**value, "of_a_newer_version": [None]}) == record


ODD: tuple[Any, ...] = (
    None, True, -1, 2**64, 1.5, float("inf"), "", "7", "\x1b]52;c;x\x07", "../..", "\ud800", [], [None], [[]],
    {}, {"a": 1},
)  # fmt: skip


def _mutate(value: Any, random: random.Random) -> Any:
    """Return the value with one part replaced or removed."""
    if isinstance(value, dict) and value and random.random() < 0.8:
        key = random.choice(list(value))
        if random.random() < 0.2:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: _mutate(value[key], random)}
    if isinstance(value, list) and value and random.random() < 0.8:
        at = random.randrange(len(value))
        return [*value[:at], _mutate(value[at], random), *value[at + 1 :]]
    return random.choice(ODD)


def test_mutated_records_are_refused_or_usable() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    refused = 0
    for _ in range(4000):
        kind, value = draw.choice(
            [(records.Fence, FENCE), (records.Status, STATUS), (records.Lineage, LINEAGE), (records.Manifest, MANIFEST)]
        )
        try:
            record = kind.from_json(_mutate(value, draw), "file")
        except records.RecordError:
            refused += 1
            continue
        json.dumps(record.to_json(), allow_nan=False).encode()
        if isinstance(record, records.Fence):
            record.accepts(1, 5)
        elif isinstance(record, records.Lineage):
            assert all(entry.attempt >= 0 for entry in record.entries)
            record.with_entry(records.LineageEntry(9, 1, "t", 1, "cpu", 0))
        elif isinstance(record, records.Manifest):
            assert record.size >= 0
            assert all(entry.size >= 0 for entry in record.object_entries)
            assert record.collected().elsewhere == {}
    assert refused > 1000


@pytest.mark.parametrize("content", [b"", b"{", b'{"epoch": ', b"[" * 100_000, b"\xff\xfe", b"nul"])
def test_partial_file_is_damaged_not_absent(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "fence.json"
    file.write_bytes(content)
    with pytest.raises(records.RecordError, match=r"fence\.json"):
        records.Fence.read_or_none(str(file))


def test_non_regular_files_are_refused_without_blocking(tmp_path: Path) -> None:
    fifo, directory, device = tmp_path / "fifo", tmp_path / "directory", "/dev/zero"
    os.mkfifo(fifo)
    directory.mkdir()
    for path in (str(fifo), str(directory), device):
        with pytest.raises(records.RecordError, match="not a regular file"):
            records.Fence.read_or_none(path)
    assert records.Fence.read_or_none(str(tmp_path / "absent")) is None


def test_oversized_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "status-0.json"
    with open(file, "wb") as out:
        out.truncate(10 * 10**9)  # sparse
    began = time.process_time()
    with pytest.raises(records.RecordError, match="larger than 1048576 bytes"):
        records.Status.read(str(file))
    assert time.process_time() - began < 1.0  # ten gigabytes take more
