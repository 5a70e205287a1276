"""The far side of a copy, program against program over plain pipes."""

from __future__ import annotations

import ast
import fcntl
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

import midstream.remote
from midstream.remote import objects, tree
from midstream_engine import records
from trees import far_output, far_program, files, random_contents, sha256, write_checkpoint, write_tree


def send_and_receive(source: Path, target: Path, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    sender = far_program("objects.send", {"directory": str(source), "objects": entries})
    arguments = {"directory": str(target), "objects": entries}
    receiver = far_program("objects.receive", arguments, stdin=sender.stdout)
    assert sender.stdout is not None
    sender.stdout.close()
    said, _ = receiver.communicate(timeout=60)
    sender.communicate(timeout=60)
    return [json.loads(line) for line in said.splitlines()]


@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_received_is_what_was_sent(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    frame = objects.FRAME
    special = [0, 1, 17, frame, frame - objects.HEADER.size, frame + 1, 3 * frame - 5]
    sizes = special + [rng.randrange(3000) for _ in range(200)] + [rng.randrange(2 * frame) for _ in range(3)]
    rng.shuffle(sizes)
    contents = random_contents(rng, sizes)
    entries = write_tree(tmp_path / "source", contents)

    reports = send_and_receive(tmp_path / "source", tmp_path / "target", entries)

    assert files(tmp_path / "target") == contents
    assert reports[-1] == {"event": "done"}
    assert {report["path"] for report in reports if report["event"] == "object"} == set(contents)
    assert not (tmp_path / "target" / tree.INCOMING).exists()


def test_small_files_share_frames_of_the_stream(tmp_path: Path) -> None:
    """1000 files of 100 bytes are a single write, not a thousand."""
    entries = write_tree(tmp_path, {f"{index}": b"x" * 100 for index in range(1000)})
    stream = far_output("objects.send", {"directory": str(tmp_path), "objects": entries})
    assert len(stream) == 1000 * (100 + objects.HEADER.size) + objects.HEADER.size < objects.FRAME


def test_only_the_end_of_a_file_travels_where_that_is_asked(tmp_path: Path) -> None:
    write_tree(tmp_path / "source", {"log": b"abcdefgh"})
    entry = {"path": "log", "offset": 5, "size": 3, "sha256": sha256(b"fgh")}
    assert send_and_receive(tmp_path / "source", tmp_path / "target", [entry])[-1]["event"] == "done"
    assert files(tmp_path / "target") == {"log": b"fgh"}


def test_a_changed_byte_is_named_and_never_gets_the_objects_name(tmp_path: Path) -> None:
    entries = write_tree(tmp_path / "source", {"good": b"g" * 5000, "bad": b"b" * 5000})
    (tmp_path / "source" / "bad").write_bytes(b"b" * 4999 + b"c")
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "bad").write_bytes(b"what was there before")
    reports = send_and_receive(tmp_path / "source", tmp_path / "target", entries)
    assert reports[-1]["event"] == "problem"
    assert (reports[-1]["kind"], reports[-1]["path"]) == ("hash", "bad")
    assert files(tmp_path / "target") == {"good": b"g" * 5000, "bad": b"what was there before"}


@pytest.mark.parametrize("fault", ["missing", "short"])
def test_an_object_that_cannot_be_sent_is_named(tmp_path: Path, fault: str) -> None:
    entries = write_tree(tmp_path / "source", {"one": b"1" * 100, "two": b"2" * 100})
    if fault == "missing":
        (tmp_path / "source" / "two").unlink()
    else:
        (tmp_path / "source" / "two").write_bytes(b"2" * 99)
    last = send_and_receive(tmp_path / "source", tmp_path / "target", entries)[-1]
    assert (last["event"], last["kind"], last["path"]) == ("problem", "source", "two")
    assert ("missing" if fault == "missing" else "99 bytes") in last["message"]
    assert files(tmp_path / "target").keys() <= {"one"}


def test_a_stream_that_is_cut_anywhere_leaves_no_temporary_file(tmp_path: Path) -> None:
    seed = 3
    print(f"seed {seed}")
    rng = random.Random(seed)
    contents = random_contents(rng, [70_000, 3, 150_000, 0, 9])
    entries = write_tree(tmp_path / "source", contents)
    arguments = {"directory": str(tmp_path / "source"), "objects": entries}
    stream = far_output("objects.send", arguments)
    for cut in [0, 5, len(stream) - 1, *(rng.randrange(len(stream)) for _ in range(4))]:
        target = tmp_path / f"target-{cut}"
        receiver = far_program("objects.receive", {"directory": str(target), "objects": entries})
        said, _ = receiver.communicate(stream[:cut], timeout=60)
        assert json.loads(said.splitlines()[-1]) == {"event": "problem", "kind": "truncated"}
        assert files(target).items() <= contents.items()


def test_a_name_that_leaves_the_directory_is_refused(tmp_path: Path) -> None:
    for path in ("../outside", "/etc/x", "a/../../b", tree.INCOMING + "/x"):
        with pytest.raises(records.RecordError, match="leaves the directory"):
            tree.check(str(tmp_path), {"path": path, "size": 0, "sha256": ""})


def test_a_sweep_removes_what_dead_copies_left_and_nothing_of_a_living_one(tmp_path: Path) -> None:
    incoming = tmp_path / tree.INCOMING
    incoming.mkdir()
    (incoming / "dead").write_bytes(b"d")
    with open(incoming / "living", "wb") as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        ready = objects.prepare(str(tmp_path), records.MANIFEST, 0)
        assert ready["swept"] == 1
        assert os.listdir(incoming) == ["living"]
    assert objects.prepare(str(tmp_path), records.MANIFEST, 0)["swept"] == 1
    assert not incoming.exists()


def test_a_tree_that_does_not_fit_makes_no_directory(tmp_path: Path) -> None:
    ready = objects.prepare(str(tmp_path / "a" / "b"), records.MANIFEST, objects.free_bytes(str(tmp_path)) * 2)
    assert not ready["fits"]
    assert not (tmp_path / "a").exists()


def test_the_manifest_is_refused_while_an_object_is_missing(tmp_path: Path) -> None:
    entries = write_tree(tmp_path / "source", {"one": b"1"})
    (tmp_path / "target").mkdir()
    with pytest.raises(FileNotFoundError):
        objects.commit(str(tmp_path / "target"), records.MANIFEST, "{}", entries)
    assert files(tmp_path / "target") == {}


def verified(directory: Path) -> list[dict[str, Any]]:
    arguments = {"directory": str(directory), "manifest": records.MANIFEST}
    return [json.loads(line) for line in far_output("tree.verify", arguments).splitlines()]


def test_verifying_recomputes_the_root_digest_from_the_bytes(tmp_path: Path) -> None:
    digest = write_checkpoint(tmp_path, random.Random(1))
    reports = verified(tmp_path)
    assert reports[-1]["recomputed"] == reports[-1]["recorded"] == digest
    assert [report["wrong"] for report in reports if report["event"] == "checked"] == [None] * 13


def test_verifying_names_every_kind_of_damage(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, random.Random(1))
    flipped, short, gone = (tmp_path / f"model/array{number}/c/0" for number in range(3))
    flipped.write_bytes(bytes([flipped.read_bytes()[0] ^ 1]) + flipped.read_bytes()[1:])
    short.write_bytes(short.read_bytes()[:-1])
    gone.unlink()
    (tmp_path / "stray").write_bytes(b"")
    reports = verified(tmp_path)
    wrong = {report["path"]: report["wrong"] for report in reports if report["event"] == "checked" and report["wrong"]}
    assert wrong.keys() == {f"model/array{number}/c/0" for number in range(3)}
    assert wrong["model/array0/c/0"].startswith("SHA-256 is")
    assert wrong["model/array1/c/0"] == "4999 bytes, the manifest says 5000"
    assert wrong["model/array2/c/0"] == "missing"
    assert reports[-1]["extra"] == ["stray"]
    assert reports[-1]["recomputed"] is None


def test_a_manifest_whose_arrays_were_edited_has_another_root_digest(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, random.Random(1))
    manifest = json.loads((tmp_path / records.MANIFEST).read_text())
    manifest["arrays"][0]["shape"] = [1, manifest["arrays"][0]["shape"][0]]
    (tmp_path / records.MANIFEST).write_text(json.dumps(manifest))
    [[path, what]] = verified(tmp_path)[-1]["problems"]
    assert path == records.MANIFEST
    assert what.startswith("root digest is")


@pytest.mark.parametrize("name", ["objects", "tree", "history", "engine", "environments"])
def test_far_modules_are_spelled_in_python_3_8(name: str) -> None:
    source = Path(midstream.remote.__file__).parent / f"{name}.py"
    ast.parse(source.read_text(), feature_version=(3, 8))
