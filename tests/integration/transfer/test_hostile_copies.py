"""A hostile source: unrequested items, and links in the paths of a copy.

Sender and receiver are the real programs.
"""

from __future__ import annotations

import json
import os
import random
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.local_host import LocalHost
from midstream.transfer.copy_history import copy_history
from midstream.transfer.copy_tree import copy_tree
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import TransferError
from midstream.transfer.send_queue import ranges
from midstream_core import records
from midstream_host.allowlist import CHECKPOINT, CHECKPOINTS, HISTORY
from midstream_host.copy import growing_checkpoint, history, staging
from midstream_host.copy.frames import DATA, FAILED, FINISH, HEADER, IDLE, ITEM
from midstream_host.copy.requested_items import RequestedItems, new_key
from midstream_host.copy_items import CopyObject
from midstream_host.object_files import INCOMING, NotPlainError
from support.checkpoints.trees import cell, far_program, files, sha256, write_tree

KEY = new_key()
CONTENT = b"what was requested"
PATHS = (cell("one"), cell("two"))


def requested(
    paths: tuple[str, ...] = PATHS, key: str = KEY, contents: tuple[bytes, ...] = (CONTENT, CONTENT)
) -> list[dict[str, Any]]:
    """Return items with tags, as the operator sends them to the source."""
    tags = RequestedItems(key)
    return [
        tags.tagged(item)
        for path, content in zip(paths, contents, strict=False)
        for item in ranges({"path": path, "size": len(content), "sha256": sha256(content)}, [(0, len(content))])
    ]


def frame(kind: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(kind, len(payload)) + payload


def item(value: Any) -> bytes:
    return frame(ITEM, value if isinstance(value, bytes) else json.dumps(value).encode())


def received(target: Path, stream: bytes, kind: str = CHECKPOINT) -> dict[str, Any]:
    """Return the last report of a receiver about a stream."""
    arguments = {"directory": str(target), "generation": "f00d", "kind": kind, "key": KEY}
    output, _ = far_program("copy.disk_receiver.receive", arguments).communicate(stream, timeout=120)
    last: dict[str, Any] = json.loads(output.splitlines()[-1])
    return last


def changed(at: int, **fields: Any) -> Callable[[list[dict[str, Any]]], bytes]:
    def stream(items: list[dict[str, Any]]) -> bytes:
        items[at] = {**items[at], **fields}
        return b"".join(item(each) + frame(DATA, CONTENT) for each in items)

    return stream


def stream_of(items: list[dict[str, Any]]) -> bytes:
    return b"".join(item(each) + frame(DATA, CONTENT) for each in items)


EVIL = sha256(b"evil")
STREAMS: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    "another path": changed(0, path="yaml.py"),
    "a path of the same kind": changed(0, path=cell("three")),
    "a path that leaves": changed(0, path="../yaml.py"),
    "an absolute path": changed(0, path="/tmp/yaml.py"),
    "another hash": changed(0, sha256=EVIL),
    "another size": changed(0, size=4, length=4),
    "another offset": changed(0, offset=4, length=4),
    "a negative offset": changed(0, offset=-4),
    "a longer item": changed(0, length=1 << 40, size=1 << 40),
    "no tag": changed(0, tag=None),
    "a made-up tag": changed(0, tag="0" * 64),
    "a tag beyond ASCII": changed(0, tag="\u202e" * 64),
    "the tag of another stream": lambda _: stream_of(requested(key=new_key())),
    "the same item twice": lambda items: stream_of([items[0], items[0]]),
    "one left out": lambda items: stream_of([items[1]]),
    "another order": lambda items: stream_of([items[1], items[0]]),
    "inside another": lambda items: item(items[0]) + frame(DATA, b"what") + item(items[1]),
    "more bytes": lambda items: item(items[0]) + frame(DATA, CONTENT + b"!"),
    "bytes of nothing": lambda _: frame(DATA, b"#!/bin/sh"),
    "no item": lambda _: item(b"[1, 2"),
    "a list": lambda _: item([1, 2]),
    "deep": lambda _: item(b"[" * 100_000),
    "no text": lambda _: item(b"\xff\xfe"),
    "fields of other types": lambda items: item({**items[0], "path": ["a"], "size": "1"}),
}


@pytest.mark.parametrize("name", STREAMS)
def test_receiver_rejects_unrequested_items_unwritten(tmp_path: Path, name: str) -> None:
    target = tmp_path / "root" / "target"
    target.mkdir(parents=True)
    last = received(target, STREAMS[name](requested()) + frame(FINISH))
    assert (last["event"], last["kind"]) == ("problem", "unrequested")
    assert last["message"].isprintable()
    named = {path for path in files(tmp_path) if f"/{INCOMING}/" not in path}
    assert named <= {f"root/target/{path}" for path in PATHS}
    assert all((tmp_path / path).read_bytes() == CONTENT for path in named)


@pytest.mark.parametrize(
    ("path", "kind"),
    [("yaml.py", CHECKPOINT), ("yaml.py", HISTORY), ("manifest.json", CHECKPOINT), ("run.yaml", CHECKPOINTS)],
)
def test_receiver_applies_its_own_allowlist(tmp_path: Path, path: str, kind: str) -> None:
    last = received(tmp_path, stream_of(requested((path,))) + frame(FINISH), kind)
    assert (last["kind"], last["path"]) == ("unrequested", path)
    assert "is no part of" in last["message"]
    arguments = {
        "directory": str(tmp_path / "t"), "generation": "f00d", "manifest": None, "text": "", "root": "", "kind": kind,
        "objects": [{"path": path, "size": 1, "sha256": "0" * 64}],
    }  # fmt: skip
    output, _ = far_program("copy.session.serve", arguments).communicate(b"", timeout=120)
    assert json.loads(output.splitlines()[-1])["kind"] == "unrequested"
    assert files(tmp_path) == {}


@pytest.mark.parametrize(
    "stream",
    [
        frame(FINISH, b"more"), frame(IDLE, b"more"), frame(9), struct.pack(">BI", ITEM, 1 << 31),
        frame(FAILED, b"\xff\x1b[2J"),
    ],
    ids=["finish", "idle", "unknown", "long", "failed"],
)  # fmt: skip
def test_malformed_frame_ends_stream_with_one_line(tmp_path: Path, stream: bytes) -> None:
    last = received(tmp_path, stream + frame(FINISH))
    assert last["event"] == "problem"
    assert last.get("message", "").isprintable()


def test_complete_checkpoint_is_never_replaced(tmp_path: Path) -> None:
    write_tree(tmp_path / "step-9-a001", {cell("one"): b"what was there"})
    before = files(tmp_path)
    last = received(tmp_path, stream_of(requested((f"step-9-a001/{cell('one')}",))) + frame(FINISH), CHECKPOINTS)
    assert (last["kind"], "exists already" in last["message"]) == ("system", True)
    assert files(tmp_path) == before


# ------------------------------------------------------------------------------------------------------ links


@pytest.fixture
def pair(tmp_path: Path) -> tuple[LocalHost, LocalHost]:
    one, two = (LocalHost(name, LocalHostConfig(root=str(tmp_path / name))) for name in ("one", "two"))
    return one, two


Pair = tuple[LocalHost, LocalHost]


def run_of(host: LocalHost) -> records.RunPaths:
    paths = records.RunPaths(host.root, "run")
    Path(paths.attempt(1).dir).mkdir(parents=True)
    Path(paths.attempt(1).metrics).write_text('{"global_step": 0}\n')
    return paths


@pytest.mark.parametrize("planted", ["attempts/001", "attempts"])
def test_receiver_refuses_planted_symlinked_directories(pair: Pair, tmp_path: Path, planted: str) -> None:
    run_of(pair[0])
    there = Path(records.RunPaths(pair[1].root, "run").dir)
    outside = tmp_path / "outside"
    (outside / "001").mkdir(parents=True)
    (there / planted).parent.mkdir(parents=True)
    (there / planted).symlink_to(outside)
    with pytest.raises(TransferError, match=r"two:.*is a symbolic link"):
        copy_history(*pair, "run", source_root=pair[0].root, target_root=pair[1].root)
    assert files(outside) == {}


def test_replaced_link_leaves_its_target_unchanged(pair: Pair, tmp_path: Path) -> None:
    """Each name gets a new file, so no link leads a receiver to another file."""
    content = {cell("a"): b"new content", cell("b"): b"other content"}
    write_tree(tmp_path / "source", content)
    secret = tmp_path / "authorized_keys"
    secret.write_bytes(b"ssh-ed25519")
    target = tmp_path / "target"
    for name, link in ((cell("a"), os.symlink), (cell("b"), os.link)):
        (target / name).parent.mkdir(parents=True)
        link(secret, target / name)
    copy_tree(Endpoint(pair[0], str(tmp_path / "source")), Endpoint(pair[1], str(target)))
    assert secret.read_bytes() == b"ssh-ed25519"
    assert not any((target / name).is_symlink() for name in content)
    assert {name: (target / name).read_bytes() for name in content} == content


@pytest.mark.parametrize("where", ["incoming", "generation", "folder", "part", "hard link"])
def test_partial_files_are_never_links(tmp_path: Path, where: str) -> None:
    target, outside = tmp_path / "target", tmp_path / "outside"
    outside.mkdir()
    victim = outside / "victim"
    victim.write_bytes(b"untouched")
    entry: Any = requested((cell("one"),))[0]
    stage = target / INCOMING / "f00d"
    if where == "incoming":
        target.mkdir()
        (target / INCOMING).symlink_to(outside)
    elif where == "generation":
        stage.parent.mkdir(parents=True)
        stage.symlink_to(outside)
    elif where == "folder":
        (target / "arrays").mkdir(parents=True)
        (target / "arrays" / "one").symlink_to(outside)
    else:
        stage.mkdir(parents=True)
        link = os.symlink if where == "part" else os.link
        link(victim, stage / staging.part_name(entry))
    before = files(outside)
    last = received(target, stream_of([entry]) + frame(FINISH))
    assert files(outside) == before
    if where in ("part", "hard link"):  # a complete object starts its own partial file
        assert last["event"] == "done"
        assert (target / cell("one")).read_bytes() == CONTENT
        half: CopyObject = {"path": cell("two"), "size": len(CONTENT), "sha256": sha256(CONTENT)}
        stage.mkdir(parents=True, exist_ok=True)
        (os.symlink if where == "part" else os.link)(victim, stage / staging.part_name(half))
        tagged = RequestedItems(KEY).tagged(ranges(half, [(0, 4)])[0])
        last = received(target, item(tagged) + frame(DATA, CONTENT[:4]) + frame(FINISH))
        assert files(outside) == before
    assert last["event"] == "problem"
    assert "symbolic link" in last["message"]


def test_copy_adopts_leftovers_only_if_regular_files(tmp_path: Path) -> None:
    names = ("plain", "link", "hard")
    entries: list[CopyObject] = [{"path": cell(name), "size": 3, "sha256": sha256(b"abc")} for name in names]
    victim = tmp_path / "victim"
    victim.write_bytes(b"untouched")
    dead = tmp_path / "target" / INCOMING / "dead"
    dead.mkdir(parents=True)
    parts = [dead / staging.part_name(entry) for entry in entries]
    parts[0].write_bytes(b"ab")
    parts[1].symlink_to(victim)
    os.link(victim, parts[2])
    (dead.parent / "planted").symlink_to(tmp_path)
    mine = staging.Stage(str(tmp_path / "target"), "mine")
    mine.adopt(entries)
    assert [Path(mine.part(entry)).exists() for entry in entries] == [True, False, False]
    assert os.listdir(dead.parent) == ["mine"]
    assert victim.read_bytes() == b"untouched"
    mine.leave()


@pytest.mark.parametrize("how", ["symlink", "folder", "pipe"])
def test_source_refuses_links_and_pipes(pair: Pair, tmp_path: Path, how: str) -> None:
    source = tmp_path / "source"
    write_tree(source, {cell("a"): b"secret", cell("b"): b"2"})
    (tmp_path / "elsewhere").mkdir()
    if how == "folder":
        (source / "arrays" / "a").rename(tmp_path / "elsewhere" / "a")
        (source / "arrays" / "a").symlink_to(tmp_path / "elsewhere" / "a")
    else:
        (source / cell("a")).rename(tmp_path / "elsewhere" / "a")
        if how == "symlink":
            (source / cell("a")).symlink_to(tmp_path / "elsewhere" / "a")
        else:
            os.mkfifo(source / cell("a"))
    with pytest.raises(TransferError, match=r"object arrays/a/c/0 of one:.*symbolic link or no regular file"):
        copy_tree(Endpoint(pair[0], str(source)), Endpoint(pair[1], str(tmp_path / "target")))
    assert not (tmp_path / "target" / records.MANIFEST).exists()


def test_history_refuses_symlinked_files(tmp_path: Path) -> None:
    host = LocalHost("one", LocalHostConfig(root=str(tmp_path)))
    paths = run_of(host)
    (tmp_path / "secret").write_text("secret")
    Path(paths.attempt(1).log()).symlink_to(tmp_path / "secret")
    with pytest.raises(records.RecordError, match=r"log-0\.txt is a symbolic link"):
        history.describe(host.root, "run")
    os.unlink(paths.attempt(1).log())
    Path(paths.dir, "tb").mkdir()
    Path(paths.dir, "tb", "events.out.tfevents.1.x").symlink_to(tmp_path / "secret")
    assert [entry.path for entry in history.describe(host.root, "run").files] == ["attempts/001/metrics.jsonl"]


def test_local_reuse_hard_links_regular_files_only(pair: Pair, tmp_path: Path) -> None:
    """Trees share objects by hard link; the linked file is the one that was hashed."""
    content = random.Random(1).randbytes(1000)
    checkpoints = Path(pair[1].root) / "runs" / "other" / "checkpoints"
    write_tree(checkpoints / "step-1-a001", {cell("plain"): content})
    write_tree(checkpoints / "step-2-a001", {cell("linked"): b"y" * 1000})
    (tmp_path / "elsewhere").write_bytes(b"y" * 1000)
    (checkpoints / "step-2-a001" / cell("linked")).unlink()
    (checkpoints / "step-2-a001" / cell("linked")).symlink_to(tmp_path / "elsewhere")
    source, target = tmp_path / "source", Path(pair[1].root) / "runs" / "r" / "checkpoints" / "step-3-a001"
    write_tree(source, {cell("one"): content, cell("two"): b"y" * 1000})
    report = copy_tree(Endpoint(pair[0], str(source)), Endpoint(pair[1], str(target)))
    assert report.linked == (cell("one"),)
    assert (target / cell("one")).samefile(checkpoints / "step-1-a001" / cell("plain"))
    assert not (target / cell("two")).is_symlink()
    assert files(target) == files(source)


def test_commit_refuses_symlinked_checkpoint_directory(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    objects = write_tree(tmp_path / "outside", {cell("a"): b"1"})
    (tmp_path / "outside" / records.MANIFEST).unlink()
    (tmp_path / "step-9-a001").symlink_to(tmp_path / "outside")
    manifest = records.Manifest(records.FORMAT, records.FORMAT_VERSION, "r", 9, 1, 1, 0.0, "d" * 64, [], objects)
    text = json.dumps(manifest.to_json())
    with pytest.raises(NotPlainError):
        growing_checkpoint.commit(str(tmp_path / "step-9-a001"), text)
    assert not (tmp_path / "outside" / records.MANIFEST).exists()
    evil = json.dumps({**json.loads(text), "objects": [{**objects[0], "path": "yaml.py"}]})
    with pytest.raises(ValueError, match=r"yaml\.py is no part of a checkpoint"):
        growing_checkpoint.commit(str(tmp_path / "outside"), evil)


def test_open_object_closes_descriptors_on_errors(tmp_path: Path) -> None:
    write_tree(tmp_path, {cell("a"): b"1"})
    (tmp_path / "link").symlink_to(tmp_path)
    from midstream_host.object_files import open_object, open_parent

    before = set(os.listdir("/proc/self/fd"))
    for path in ("link/x", f"{cell('a')}/x", "missing/x", "link"):
        with pytest.raises(OSError):  # noqa: PT011
            os.close(open_object(str(tmp_path), path))
    os.close(open_parent(str(tmp_path), cell("a"))[0])
    threading.Event().wait(0)
    assert set(os.listdir("/proc/self/fd")) == before
