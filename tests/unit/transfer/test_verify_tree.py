"""Verification of a checkpoint on its host: every object is hashed again."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from midstream_core import records
from support.checkpoints.trees import (
    far_output,
    write_checkpoint,
)


def verified(directory: Path) -> list[dict[str, Any]]:
    arguments = {"directory": str(directory), "manifest": records.MANIFEST}
    return [json.loads(line) for line in far_output("verify.tree.verify", arguments).splitlines()]


def test_verify_recomputes_the_root_digest(tmp_path: Path) -> None:
    digest = write_checkpoint(tmp_path, random.Random(1))
    reports = verified(tmp_path)
    assert reports[-1]["recomputed"] == reports[-1]["recorded"] == digest
    assert [report["wrong"] for report in reports if report["event"] == "checked"] == [None] * 13


def test_verify_names_every_kind_of_damage(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, random.Random(1))
    flipped, short, missing = (tmp_path / f"arrays/model/array{number}/c/0" for number in range(3))
    flipped.write_bytes(bytes([flipped.read_bytes()[0] ^ 1]) + flipped.read_bytes()[1:])
    short.write_bytes(short.read_bytes()[:-1])
    missing.unlink()
    (tmp_path / "stray").write_bytes(b"")
    reports = verified(tmp_path)
    wrong = {report["path"]: report["wrong"] for report in reports if report["event"] == "checked" and report["wrong"]}
    assert wrong.keys() == {f"arrays/model/array{number}/c/0" for number in range(3)}
    assert wrong["arrays/model/array0/c/0"].startswith("SHA-256 is")
    assert wrong["arrays/model/array1/c/0"] == "4999 bytes, the manifest says 5000"
    assert wrong["arrays/model/array2/c/0"] == "missing"
    assert reports[-1]["extra"] == ["stray"]
    assert reports[-1]["recomputed"] is None


def test_verify_detects_edited_arrays_in_the_manifest(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, random.Random(1))
    manifest = json.loads((tmp_path / records.MANIFEST).read_text())
    manifest["arrays"][0]["dtype"] = "int32"
    (tmp_path / records.MANIFEST).write_text(json.dumps(manifest))
    [[path, what]] = verified(tmp_path)[-1]["problems"]
    assert path == records.MANIFEST
    assert what.startswith("root digest is")
