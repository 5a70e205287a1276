"""Trees of objects for tests: random files with a manifest, and a small real checkpoint written by hand."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from midstream_core import records
from support.paths import REPOSITORY

SOURCES = [str(REPOSITORY / name) for name in ("app", "engine")]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write_tree(directory: Path, contents: dict[str, bytes], **manifest: Any) -> list[Any]:
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
    """Write a token cache below ``data``, and return its name, the digest of its manifest."""
    objects = write_tree(data / "new", contents, format="midstream-tokens")
    manifest = {"format": "midstream-tokens", "objects": objects}
    digest = sha256(records.canonical_json(manifest))
    (data / "new" / records.MANIFEST).write_text(json.dumps({**manifest, "digest": digest}))
    return (data / "new").rename(data / digest).name


def cell(name: str) -> str:
    """Return the path of the only chunk of an array."""
    return f"arrays/{name}/c/0"


def random_contents(rng: random.Random, sizes: list[int]) -> dict[str, bytes]:
    """Return objects of these sizes, in folders of several depths."""
    names = [cell(f"{rng.choice(['', 'a/', 'a/b/'])}object-{index}") for index in range(len(sizes))]
    return {name: rng.randbytes(size) for name, size in zip(names, sizes, strict=True)}


def write_checkpoint(directory: Path, rng: random.Random, arrays: int = 3, cells: int = 4, size: int = 5000) -> str:
    """Write a checkpoint in the documented format, with random bytes as chunks; return its root digest."""
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
    """Return every file below ``directory`` with its bytes, without those that are removed while it reads."""
    found = {}
    for path in paths_below(directory):
        with suppress(FileNotFoundError):
            if path.is_file():
                found[str(path.relative_to(directory))] = path.read_bytes()
    return found


def paths_below(directory: Path) -> list[Path]:
    """Return all files and links below ``directory``. A ``rglob`` fails where a folder is removed at that time."""
    return [Path(parent, name) for parent, _, names in os.walk(directory) for name in names]


def assert_same_tree(found: Path | dict[str, bytes], expected: Path | dict[str, bytes], why: str = "") -> None:
    """Assert the same files with the same bytes. The message names differing files without their content."""
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
    """Assert that some files of a tree are there, not all of them, each complete."""
    assert_same_tree(found, {name: expected[name] for name in found.keys() & expected.keys()})
    assert len(found) < len(expected)


def _first_difference(one: bytes, other: bytes) -> int | None:
    if one == other:
        return None
    low, high = 0, min(len(one), len(other))
    while low < high:  # the first byte that differs is in one[low:high], or at ``high``
        middle = (low + high) // 2 + 1
        low, high = (low, middle - 1) if one[low:middle] != other[low:middle] else (middle, high)
    return low


def far_program(function: str, arguments: dict[str, Any], stdin: Any = subprocess.PIPE) -> subprocess.Popen[bytes]:
    """Start a function of midstream_host in an interpreter of its own, as on a host."""
    module, _, name = function.rpartition(".")
    code = (
        f"import json, sys; sys.path[:0] = {SOURCES!r}; from midstream_host.{module} import {name};"
        f" sys.exit({name}(**json.loads(sys.argv[1])))"
    )
    argv = [sys.executable, "-c", code, json.dumps(arguments)]
    return subprocess.Popen(argv, stdin=stdin, stdout=subprocess.PIPE)


def far_output(function: str, arguments: dict[str, Any]) -> bytes:
    """Return the output of a program that runs to its end: it exits when its stdin closes."""
    with far_program(function, arguments) as program:
        assert program.stdout is not None
        return program.stdout.read()
