"""Trees of objects for tests: random files with a manifest, and a small real checkpoint written by hand."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from midstream_engine import records

SOURCES = [str(Path(__file__).parents[2] / name) for name in ("app", "engine")]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write_tree(directory: Path, contents: dict[str, bytes], **manifest: Any) -> list[dict[str, Any]]:
    """Write the objects and a manifest that names them; returns the manifest's ``objects``."""
    objects = []
    for path, content in contents.items():
        place = directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        objects.append({"path": path, "size": len(content), "sha256": sha256(content), "crc32c": ""})
    (directory / records.MANIFEST).write_text(json.dumps({**manifest, "objects": objects}, indent=1))
    return objects


def write_data(data: Path, contents: dict[str, bytes]) -> str:
    """A token cache below ``data``, called by the digest of its manifest, which is returned."""
    objects = write_tree(data / "new", contents, format="midstream-tokens")
    manifest = {"format": "midstream-tokens", "objects": objects}
    digest = sha256(records.canonical_json(manifest))
    (data / "new" / records.MANIFEST).write_text(json.dumps({**manifest, "digest": digest}))
    return (data / "new").rename(data / digest).name


def cell(name: str) -> str:
    """Path of the only cell of an array: what a copy of a checkpoint may contain."""
    return f"arrays/{name}/c/0"


def random_contents(rng: random.Random, sizes: list[int]) -> dict[str, bytes]:
    """Objects of these sizes, in folders of several depths."""
    names = [cell(f"{rng.choice(['', 'a/', 'a/b/'])}object-{index}") for index in range(len(sizes))]
    return {name: rng.randbytes(size) for name, size in zip(names, sizes, strict=True)}


def write_checkpoint(directory: Path, rng: random.Random, arrays: int = 3, cells: int = 4, size: int = 5000) -> str:
    """A checkpoint as the format says, with arbitrary bytes as chunks; returns its root digest."""
    contents: dict[str, bytes] = {}
    entries = []
    for number in range(arrays):
        paths = [f"arrays/model/array{number}/c/{index}" for index in range(cells)]
        contents.update({path: rng.randbytes(size) for path in paths})
        entries.append(
            records.ArrayEntry(f"model/array{number}", ["embed"], [cells * size // 4], "float32", [cells], paths)
        )
    state = {"step": 7, "seed": rng.randrange(1000)}
    contents[records.TRAIN] = json.dumps({"state": state, "provenance": {}}).encode()
    hashes = {path: sha256(content) for path, content in contents.items()}
    digest = records.root_digest(entries, hashes, state)
    write_tree(
        directory,
        contents,
        format=records.FORMAT,
        version=records.FORMAT_VERSION,
        run_id="run",
        step=7,
        attempt=1,
        epoch=1,
        created=1.0,
        root_digest=digest,
        arrays=[entry.to_json() for entry in entries],
    )
    return digest


def files(directory: Path) -> dict[str, bytes]:
    """Every file below ``directory`` with its bytes."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def assert_same_tree(found: Path | dict[str, bytes], expected: Path | dict[str, bytes], why: str = "") -> None:
    """The same files with the same bytes. What is missing, extra or different is named, and no content is shown."""
    there, wanted = (files(each) if isinstance(each, Path) else each for each in (found, expected))
    flaws = [f"missing: {name!r} ({len(wanted[name]):,} bytes)" for name in sorted(wanted.keys() - there.keys())]
    flaws += [f"extra: {name!r} ({len(there[name]):,} bytes)" for name in sorted(there.keys() - wanted.keys())]
    flaws += [
        f"different: {name!r} ({len(there[name]):,} bytes for {len(wanted[name]):,}, from byte {at:,} on)"
        for name in sorted(there.keys() & wanted.keys())
        if (at := _first_difference(there[name], wanted[name])) is not None
    ]
    if flaws:
        more = f"\n  and {len(flaws) - 20} more" if len(flaws) > 20 else ""
        pytest.fail("not the same tree" + (f": {why}" if why else "") + "\n  " + "\n  ".join(flaws[:20]) + more)


def assert_unfinished(found: dict[str, bytes], expected: dict[str, bytes]) -> None:
    """Some files of a tree, not all of them, and each with its bytes."""
    assert_same_tree(found, {name: expected[name] for name in found.keys() & expected.keys()})
    assert len(found) < len(expected)


def _first_difference(one: bytes, other: bytes) -> int | None:
    if one == other:
        return None
    low, high = 0, min(len(one), len(other))
    while low < high:  # the first byte that differs lies in one[low:high], or is that at ``high``
        middle = (low + high) // 2 + 1
        low, high = (low, middle - 1) if one[low:middle] != other[low:middle] else (middle, high)
    return low


def far_program(function: str, arguments: dict[str, Any], stdin: Any = subprocess.PIPE) -> subprocess.Popen[bytes]:
    """A function of midstream.remote in an interpreter of its own, as on a host."""
    module, _, name = function.rpartition(".")
    code = (
        f"import json, sys; sys.path[:0] = {SOURCES!r}; from midstream.remote.{module} import {name};"
        f" sys.exit({name}(**json.loads(sys.argv[1])))"
    )
    argv = [sys.executable, "-c", code, json.dumps(arguments)]
    return subprocess.Popen(argv, stdin=stdin, stdout=subprocess.PIPE)


def far_output(function: str, arguments: dict[str, Any]) -> bytes:
    """What a program writes that is left to its end: it gives up when its stdin closes."""
    with far_program(function, arguments) as program:
        assert program.stdout is not None
        return program.stdout.read()
