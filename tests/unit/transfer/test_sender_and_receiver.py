"""The programs at both ends of a copy, connected by pipes."""

from __future__ import annotations

import fcntl
import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from midstream.transfer.send_queue import ranges
from midstream_core import records
from midstream_host.allowlist import CHECKPOINT, HISTORY
from midstream_host.copy import frames, sender, session, staging
from midstream_host.copy.range_assembly import Assembly
from midstream_host.copy.requested_items import RequestedItems, new_key
from midstream_host.copy_items import CopyItem, CopyObject, HistoryObject
from midstream_host.object_files import INCOMING
from midstream_host.verify import objects
from support.checkpoints.trees import (
    assert_same_tree,
    cell,
    far_program,
    files,
    random_contents,
    sha256,
    write_tree,
)

GENERATION = "f00d"


KEY = new_key()


RECEIVING = {"generation": GENERATION, "kind": CHECKPOINT, "key": KEY}


def feed(sender: subprocess.Popen[bytes], *lines: dict[str, Any]) -> None:
    assert sender.stdin is not None
    for line in lines:
        sender.stdin.write(json.dumps(line).encode() + b"\n")
    sender.stdin.flush()


def full_items(entries: list[Any]) -> list[dict[str, Any]]:
    return tagged([item for entry in entries for item in ranges(entry, [(0, entry["size"])])])


def tagged(items: list[CopyItem]) -> list[dict[str, Any]]:
    """Return items with tags, as the operator sends them to the sender of one stream."""
    requested = RequestedItems(KEY)
    return [requested.tagged(item) for item in items]


def reports_of(receiver: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    assert receiver.stdout is not None
    lines = receiver.stdout.read().splitlines()
    receiver.wait(60)
    receiver.stdout.close()
    return [json.loads(line) for line in lines]


def send_and_receive(
    source: Path, target: Path, items: list[dict[str, Any]], kind: str = CHECKPOINT
) -> list[dict[str, Any]]:
    sender = far_program("copy.sender.send", {"directory": str(source)})
    arguments = {"directory": str(target), **RECEIVING, "kind": kind}
    receiver = far_program("copy.disk_receiver.receive", arguments, stdin=sender.stdout)
    assert sender.stdout is not None
    sender.stdout.close()
    feed(sender, {"items": items[:3]}, {"items": items[3:], "end": True})
    reports = reports_of(receiver)
    sender.communicate(timeout=60)
    return reports


def stream_of(source: Path, items: list[dict[str, Any]]) -> bytes:
    """Return what a sender writes."""
    with far_program("copy.sender.send", {"directory": str(source)}) as sender:
        feed(sender, {"items": items, "end": True})
        assert sender.stdout is not None
        return sender.stdout.read()


def landed(reports: list[dict[str, Any]], what: str) -> list[Any]:
    return [each for report in reports if report["event"] == "landed" for each in report[what]]


@pytest.mark.parametrize("seed", [1, 2])
def test_received_tree_equals_the_sent_tree(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    large, small = frames.PAYLOAD, sender.SMALL
    special = [0, 1, 17, small, small + 1, large, large - frames.HEADER.size, large + 1, 3 * large - 5]
    sizes = special + [rng.randrange(3000) for _ in range(200)] + [rng.randrange(2 * large) for _ in range(3)]
    rng.shuffle(sizes)
    contents = random_contents(rng, sizes)
    entries = write_tree(tmp_path / "source", contents)

    reports = send_and_receive(tmp_path / "source", tmp_path / "target", full_items(entries))

    assert_same_tree(tmp_path / "target", contents)
    assert reports[-1] == {"event": "done"}
    assert sorted(landed(reports, "objects")) == sorted(contents)
    assert sum(report["bytes"] for report in reports[:-1]) == sum(sizes)
    assert not (tmp_path / "target" / INCOMING).exists()


def test_landed_objects_are_reported_while_stream_is_idle(tmp_path: Path) -> None:
    """The operator sends more items to a sender when the last ones are reported."""
    entries = write_tree(tmp_path / "source", {cell("one"): b"1" * 1000, cell("two"): b"2" * 1000})
    arguments = {"directory": str(tmp_path / "target"), **RECEIVING}
    stream = stream_of(tmp_path / "source", full_items(entries)).removesuffix(frames.HEADER.pack(frames.FINISH, 0))
    with far_program("copy.disk_receiver.receive", arguments) as receiver:
        assert receiver.stdin is not None
        assert receiver.stdout is not None
        receiver.stdin.write(stream)
        receiver.stdin.flush()
        reported: list[str] = []
        while len(reported) < 2:
            reported += landed([json.loads(receiver.stdout.readline())], "objects")
        assert reported == [cell("one"), cell("two")]
        receiver.stdin.close()


def test_small_files_share_writes(tmp_path: Path) -> None:
    """1000 files of 100 bytes are one write, so that the stream has large packets."""
    entries = write_tree(tmp_path, {f"{index}": b"x" * 100 for index in range(1000)})
    with far_program("copy.sender.send", {"directory": str(tmp_path)}) as sender:
        assert sender.stdout is not None
        fcntl.fcntl(sender.stdout, fcntl.F_SETPIPE_SZ, frames.PIPE)
        feed(sender, {"items": full_items(entries), "end": True})
        first = os.read(sender.stdout.fileno(), frames.PIPE)
        assert len(first) + len(sender.stdout.read()) < 1000 * 400
        assert len(first) > 200_000


def test_requested_tail_of_a_file_is_sent(tmp_path: Path) -> None:
    log = "attempts/001/log-0.txt"
    write_tree(tmp_path / "source", {log: b"abcdefgh"})
    entry: HistoryObject = {"path": log, "offset": 5, "size": 3, "sha256": sha256(b"fgh")}
    reports = send_and_receive(tmp_path / "source", tmp_path / "target", full_items([entry]), HISTORY)
    assert reports[-1]["event"] == "done"
    assert_same_tree(tmp_path / "target", {log: b"fgh"})


def test_ranges_are_written_in_place_in_a_partial_file(tmp_path: Path) -> None:
    [entry] = write_tree(tmp_path / "source", {cell("large"): b"0123456789"})
    items = tagged(ranges(entry, [(6, 3), (2, 2)]))
    reports = send_and_receive(tmp_path / "source", tmp_path / "target", items)
    assert landed(reports, "ranges") == [[cell("large"), 6, 3], [cell("large"), 2, 2]]
    assert not (tmp_path / "target" / cell("large")).exists()
    part = staging.Stage(str(tmp_path / "target"), GENERATION).part(entry)
    assert Path(part).read_bytes() == b"\0\0" + b"23" + b"\0\0" + b"678"


def test_corrupt_object_is_named_and_never_renamed(tmp_path: Path) -> None:
    entries = write_tree(tmp_path / "source", {cell("good"): b"g" * 5000, cell("bad"): b"b" * 5000})
    (tmp_path / "source" / cell("bad")).write_bytes(b"b" * 4999 + b"c")
    (tmp_path / "target" / cell("bad")).parent.mkdir(parents=True)
    (tmp_path / "target" / cell("bad")).write_bytes(b"what was there before")
    reports = send_and_receive(tmp_path / "source", tmp_path / "target", full_items(entries))
    assert reports[-1]["event"] == "problem"
    assert (reports[-1]["kind"], reports[-1]["path"]) == ("hash", cell("bad"))
    assert_same_tree(tmp_path / "target", {cell("good"): b"g" * 5000, cell("bad"): b"what was there before"})


@pytest.mark.parametrize("size", [100, 3 << 20])
@pytest.mark.parametrize("fault", ["missing", "short"])
def test_unsendable_object_is_named(tmp_path: Path, fault: str, size: int) -> None:
    entries = write_tree(tmp_path / "source", {cell("one"): b"1" * 100, cell("two"): b"2" * size})
    if fault == "missing":
        (tmp_path / "source" / cell("two")).unlink()
    else:
        (tmp_path / "source" / cell("two")).write_bytes(b"2" * (size - 1))
    last = send_and_receive(tmp_path / "source", tmp_path / "target", full_items(entries))[-1]
    assert (last["event"], last["kind"], last["path"]) == ("problem", "source", cell("two"))
    assert ("missing" if fault == "missing" else f"{size - 1} bytes") in last["message"]
    assert cell("two") not in files(tmp_path / "target")


def test_truncated_stream_leaves_complete_objects_only(tmp_path: Path) -> None:
    seed = 3
    print(f"seed {seed}")
    rng = random.Random(seed)
    contents = random_contents(rng, [70_000, 3, 150_000, 0, 9])
    stream = stream_of(tmp_path / "source", full_items(write_tree(tmp_path / "source", contents)))
    for cut in [0, 5, len(stream) - 1, *(rng.randrange(len(stream)) for _ in range(4))]:
        target = tmp_path / f"target-{cut}"
        receiver = far_program("copy.disk_receiver.receive", {"directory": str(target), **RECEIVING})
        output, _ = receiver.communicate(stream[:cut], timeout=60)
        assert json.loads(output.splitlines()[-1]) == {"event": "problem", "kind": "truncated"}
        named = {name: content for name, content in files(target).items() if not name.startswith(INCOMING)}
        assert named.items() <= contents.items()


def test_sender_exits_when_stdin_closes(tmp_path: Path) -> None:
    with far_program("copy.sender.send", {"directory": str(tmp_path)}) as sender:
        assert sender.stdin is not None
        sender.stdin.close()
        assert sender.wait(60) == 1


def test_sender_keeps_the_bandwidth_limit() -> None:
    """The sender's clock is replaced, so no time passes."""
    pace = sender.Pace()
    slept: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        now = [100.0]
        patch.setattr(sender.time, "monotonic", lambda: now[0])

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            now[0] += seconds

        patch.setattr(sender.time, "sleep", sleep)
        pace.rate = 1000.0
        pace._due = now[0]
        for _ in range(50):
            pace.wait_after(100)
        assert sum(slept) == pytest.approx(5.0, abs=0.3)
        assert pace.piece == 4096


def test_path_outside_the_directory_is_refused(tmp_path: Path) -> None:
    for path in ("../outside", "/etc/x", "a/../../b", INCOMING + "/x"):
        with pytest.raises(ValueError, match="leaves the directory"):
            objects.check(str(tmp_path), {"path": path, "size": 0, "sha256": ""})


def test_partial_files_of_exited_copies_are_adopted(tmp_path: Path) -> None:
    entry: CopyObject = {"path": "x", "size": 3, "sha256": sha256(b"abc")}
    exited, running, mine = (staging.Stage(str(tmp_path), name) for name in ("exited", "running", "mine"))
    for stage in (exited, running):
        Path(stage.part(entry)).write_bytes(b"ab")
    exited.leave()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "LOCK_TIMEOUT", 0.2)  # seconds
        mine.adopt([entry])
    assert Path(mine.part(entry)).read_bytes() == b"ab"
    assert sorted(os.listdir(tmp_path / INCOMING)) == ["mine", "running"]
    running.leave()
    mine.adopt([])
    assert os.listdir(tmp_path / INCOMING) == ["mine"]


def test_concurrent_stage_entries_leave_nothing_behind(tmp_path: Path) -> None:
    """A second descriptor of the lock would prevent removal of the directory."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for number in range(30):
            stage = staging.Stage(str(tmp_path / f"{number}"), "one")
            with ThreadPoolExecutor(8) as pool:
                list(
                    pool.map(lambda name, stage=stage: stage.part({"path": name, "size": 1, "sha256": "0"}), "abcdefgh")
                )
            stage.leave()
            assert not (tmp_path / f"{number}" / INCOMING).exists()
    finally:
        sys.setswitchinterval(interval)


def test_left_stage_refuses_new_parts(tmp_path: Path) -> None:
    stage = staging.Stage(str(tmp_path), "one")
    stage.enter()
    stage.leave()
    with pytest.raises(OSError, match="this copy has ended"):
        stage.part({"path": "a", "size": 1, "sha256": "0"})
    assert not (tmp_path / INCOMING).exists()


def test_assert_same_tree_names_differences_without_content() -> None:
    one = {"same": b"x", "extra": b"ab", "other": b"0123456789"}
    with pytest.raises(pytest.fail.Exception) as caught:
        assert_same_tree(one, {"same": b"x", "missing": b"abc", "other": b"0123x56789"})
    assert str(caught.value).splitlines()[1:] == [
        "  missing: 'missing' (3 bytes)",
        "  extra: 'extra' (2 bytes)",
        "  different: 'other' (10 bytes for 10, from byte 4 on)",
    ]


def test_last_stage_to_leave_removes_the_directory(tmp_path: Path) -> None:
    stages = [staging.Stage(str(tmp_path), "one") for _ in range(2)]
    for stage in stages:
        stage.enter()
    stages[0].leave()
    assert (tmp_path / INCOMING / "one").exists()
    stages[1].leave()
    assert not (tmp_path / INCOMING).exists()


def test_chunk_hashes_skips_holes(tmp_path: Path) -> None:
    chunk, content = staging.CHUNK, random.Random(1).randbytes(100)
    part = tmp_path / "part"
    with part.open("wb") as file:
        file.write(content)
        file.truncate(chunk)
        file.seek(3 * chunk)
        file.write(content)
    found = staging.chunk_hashes(str(part), 4 * chunk)
    assert [each[:2] for each in found if each[0] != chunk * 2 or each[2] != sha256(bytes(chunk))] == [[0, chunk]]
    assert found[0][2] == sha256(content.ljust(chunk, b"\0"))


def test_assembly_front_advances_with_unordered_ranges() -> None:
    seed = 4
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(100):
        size = rng.randrange(1, 60)
        pieces = [(start, min(7, size - start)) for start in range(0, size, 7)]
        rng.shuffle(pieces)
        assembly = Assembly({"path": "x", "size": size, "sha256": ""})
        seen: set[int] = set()
        for offset, length in pieces:
            assembly.landed(offset, length)
            seen |= set(range(offset, offset + length))
            assert assembly.front == next(at for at in range(size + 1) if at not in seen)


def test_commit_refuses_manifest_with_missing_objects(tmp_path: Path) -> None:
    entries = write_tree(tmp_path / "source", {cell("one"): b"1"})
    (tmp_path / "target").mkdir()
    stage = staging.Stage(str(tmp_path / "target"), GENERATION)
    with pytest.raises(FileNotFoundError):
        session.commit(stage, records.MANIFEST, "{}", entries)
    stage.leave()
    assert_same_tree(tmp_path / "target", {})
