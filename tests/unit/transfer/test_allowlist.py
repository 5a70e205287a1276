"""Allowlist of the receiver: paths, sizes and hashes of each kind of copy."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.local_host import LocalHost
from midstream.transfer.copy_history import copy_history
from midstream.transfer.copy_tree import copy_tree
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import TransferError
from midstream_core import records
from midstream_engine.checkpoint import zarr
from midstream_engine.interop.tokenizer_files import FOLDER, NAMES
from midstream_host import allowlist
from midstream_host.allowlist import CHECKPOINT, CHECKPOINTS, DATA, HISTORY, NotAllowedError
from support.checkpoints.trees import cell, files, sha256, write_data, write_tree
from support.commit_seed import commit_seed

EVENTS = "events.out.tfevents.1700000000.gpu-1.example"
GOOD = {
    CHECKPOINT: ("train.json", "small.safetensors", "arrays/model/blocks/attn.0/w_1/c/0/12", "arrays/x/zarr.json"),
    CHECKPOINTS: ("step-1200-a003/train.json", "step-0-a001/arrays/x/c/0"),
    DATA: (
        "tokens-00000.bin", "offsets.bin", "0.doc_idx.npy", "12.bin", "12.idx", "blend.bin", "0/shard_ledger.json",
        "0/1/input_ids/data/c/0", "0/1/input_ids/offsets/.zarray", "0/1/input_ids/data/0.0", "tokenizer.json",
        "0/1/input_ids/zarr.json",
    ),
    HISTORY: (
        "run.yaml", "attempts/001/metrics.jsonl", "attempts/1234/status-0.json", "attempts/001/restore.json",
        "attempts/001/log-15.txt", f"tblogs/run.1/{EVENTS}.001", EVENTS,
    ),
}  # fmt: skip
BAD = (
    "", ".", "..", "/", "/etc/passwd", "../x", "a/../../x", "./train.json", "arrays//x/c/0", "arrays/x/c/0/",
    "arrays/../x", "arrays/x/c/0\n", "arrays/x\n/c/0", "arrays/x/c/\u0660", "arrays/\u202ex/c/0", "arrays/x\0/c/0",
    "arrays/.x/c/0", "arrays/x/c/0.py", "arrays/x/zarr.json/y.py", "manifest.json", "Train.json", "train.json/x",
    "yaml.py", "jax/__init__.py", "sitecustomize.py", "usercustomize.py", "wandb/settings",
    "attempts/001/wandb/settings", "attempts/001/yaml.py", "attempts/001/command.json", "attempts/001/launch.json",
    "attempts/001/exit-0.json", "attempts/001/work-0-x/yaml.py", "attempts/01/metrics.jsonl",
    "attempts/001/../metrics.jsonl", "attempts/001/status-0.json/x", "fence.json",
    "lineage.json", "migration_lock.json",
    "store.json", ".secrets.json", ".lock", "pins/x.json", ".incoming/x/written", f"attempts/001/{EVENTS}",
    f"checkpoints/{EVENTS}", f"../{EVENTS}", f"a/../{EVENTS}", f".hidden/{EVENTS}", f"{EVENTS}.py", f"{EVENTS}.so",
    f"{EVENTS}/x", f"fence.json/{EVENTS}", f"run.yaml/a/{EVENTS}", f"a\n/{EVENTS}", f"~/{EVENTS}",
    "events.out.tfevents.x.py", "pyvenv.cfg", "tokens-00000.bin.py",
    "tokenizer/evil.py", "0/1/input_ids/../../x", "0/1/input_ids/x.py", "x.pth", "0.pth", "step-1-a001/manifest.json",
    "step-1-a001/../x", "step-x/train.json", "x" * 5000, "a/" * 600 + "c/0",
)  # fmt: skip


def allowed(kind: str, path: Any) -> bool:
    try:
        allowlist.largest(kind, path)
    except NotAllowedError:
        return False
    return True


@pytest.mark.parametrize("kind", GOOD)
def test_kind_allows_its_own_paths_only(kind: str) -> None:
    assert [path for path in GOOD[kind] if not allowed(kind, path)] == []
    assert [path for path in BAD if allowed(kind, path)] == []
    others = [path for other in GOOD if other != kind for path in GOOD[other]]
    assert [path for path in others if allowed(kind, path)] == []
    assert not any(allowed(kind, value) for value in (None, 7, [], {}, b"train.json"))


@pytest.mark.parametrize("kind", GOOD)
def test_mutated_paths_never_leave_tree_or_name_modules(kind: str) -> None:
    """Each accepted mutation of an allowed path is still a harmless path."""
    seed = commit_seed()
    rng = random.Random(seed)
    pieces = [
        "..",
        ".",
        "/",
        "~",
        "\n",
        "\0",
        "\\",
        "\u202e",
        "x",
        "a.py",
        "__init__.py",
        ".pth",
        "%2e",
        "attempts",
        "0",
    ]
    for _ in range(4000):
        path = rng.choice(GOOD[kind])
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(path) + 1)
            path = path[:at] + rng.choice(pieces) + path[at + rng.randrange(2) :]
        if allowed(kind, path):
            assert records.safe_relative(path), ascii(path)
            assert path.isprintable(), ascii(path)
            assert path.isascii(), ascii(path)
            last = path.rpartition("/")[2]
            assert not last.endswith((".py", ".pyc", ".so", ".pth")), path
            assert last != "settings", path


def test_allowlist_contains_what_the_engine_writes() -> None:
    assert all(allowed(DATA, name) and allowed(DATA, f"{FOLDER}/{name}") for name in NAMES)
    assert allowed(CHECKPOINT, zarr.chunk_path("model/blocks/attn/qkv/weight", (0, 63)))
    paths = records.RunPaths("/r", "run")
    attempts = [paths.attempt(number) for number in (1, 4711)]
    written = [path for each in attempts for path in (each.metrics, each.restore, each.status(17), each.log(17))]
    for path in (paths.config, *written):
        assert allowed(HISTORY, path.removeprefix(paths.dir + "/"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": "7"}, "has a size of '7'"),
        ({"size": -1}, "has a size of -1"),
        ({"size": True}, "has a size of True"),
        ({"size": 1 << 62}, "has a size of"),
        ({"sha256": "0" * 63}, "has no SHA-256"),
        ({"sha256": "A" * 64}, "has no SHA-256"),
        ({"sha256": None}, "has no SHA-256"),
        ({"path": "arrays/\x1b[2J/c/0"}, r"'arrays/\\x1b\[2J/c/0' is no part"),
        ({"offset": -5}, "begins at -5"),
    ],
)
def test_sizes_and_hashes_are_checked_and_errors_escaped(fields: dict[str, Any], message: str) -> None:
    entry = {"path": cell("x"), "size": 1, "sha256": "0" * 64}
    assert allowlist.checked(CHECKPOINT, entry) == entry
    with pytest.raises(NotAllowedError, match=message):
        allowlist.checked(CHECKPOINT, {**entry, **fields})
    with pytest.raises(NotAllowedError, match="named twice"):
        allowlist.check_all(CHECKPOINT, [entry, dict(entry)])
    with pytest.raises(NotAllowedError, match="no list"):
        allowlist.check_all(CHECKPOINT, {"0": entry})


@pytest.fixture
def pair(tmp_path: Path) -> tuple[LocalHost, LocalHost]:
    one, two = (LocalHost(name, LocalHostConfig(root=str(tmp_path / name))) for name in ("one", "two"))
    return one, two


@pytest.mark.parametrize(
    "path", ["yaml.py", "arrays/yaml.py", "manifest.json", "arrays/\u202ex/c/0", "attempts/001/log-0.txt"]
)
def test_copy_refuses_extra_file_before_writing(pair: tuple[LocalHost, LocalHost], tmp_path: Path, path: str) -> None:
    write_tree(tmp_path / "source", {cell("a"): b"1", path: b"import os"})
    with pytest.raises(TransferError) as caught:
        copy_tree(Endpoint(pair[0], str(tmp_path / "source")), Endpoint(pair[1], str(tmp_path / "target")))
    assert "is no part of a checkpoint" in str(caught.value)
    assert str(caught.value).startswith("one: ")
    assert str(caught.value).isprintable()
    assert not (tmp_path / "target").exists()


def test_arrays_may_differ_in_case_alone(pair: tuple[LocalHost, LocalHost], tmp_path: Path) -> None:
    write_tree(tmp_path / "source", {cell("model/W"): b"1", cell("model/w"): b"2"})
    copy_tree(Endpoint(pair[0], str(tmp_path / "source")), Endpoint(pair[1], str(tmp_path / "target")))
    assert files(tmp_path / "target") == files(tmp_path / "source")


def test_object_path_below_another_object_is_refused(pair: tuple[LocalHost, LocalHost], tmp_path: Path) -> None:
    objects = write_tree(tmp_path / "source", {"arrays/x/c/0": b"1"})
    more = [{**objects[0], "path": "arrays/x/c/0/0"}]
    (tmp_path / "source" / records.MANIFEST).write_text(json.dumps({"objects": objects + more}))
    with pytest.raises(TransferError, match=r"arrays/x/c/0/0 of one:"):
        copy_tree(Endpoint(pair[0], str(tmp_path / "source")), Endpoint(pair[1], str(tmp_path / "target")))
    assert not (tmp_path / "target" / records.MANIFEST).exists()


def test_data_directory_name_must_be_its_digest(pair: tuple[LocalHost, LocalHost], tmp_path: Path) -> None:
    """A wrong token cache under a right name would reach all runs of the host."""
    data = tmp_path / "one" / "data"
    digest = write_data(data, {"tokens-00000.bin": b"12", "offsets.bin": b"3"})
    target = tmp_path / "two" / "data" / digest
    copy_tree(Endpoint(pair[0], str(data / digest)), Endpoint(pair[1], str(target)), kind=DATA)
    assert files(target) == files(data / digest)
    other = write_data(data, {"tokens-00000.bin": b"56"})
    wrong_digest = "f" * 64
    (data / other).rename(data / wrong_digest)
    manifest = json.loads((data / wrong_digest / records.MANIFEST).read_text())
    for text in (json.dumps(manifest), json.dumps({**manifest, "digest": wrong_digest})):
        (data / wrong_digest / records.MANIFEST).write_text(text)
        with pytest.raises(TransferError, match="its name is not the digest of its manifest"):
            copy_tree(
                Endpoint(pair[0], str(data / wrong_digest)),
                Endpoint(pair[1], str(tmp_path / "two/data" / wrong_digest)),
                kind=DATA,
            )
    assert not (tmp_path / "two" / "data" / wrong_digest).exists()


def test_config_is_copied_only_as_it_was_checked(pair: tuple[LocalHost, LocalHost]) -> None:
    paths, there = (records.RunPaths(host.root, "run") for host in pair)
    Path(paths.attempt(1).dir).mkdir(parents=True)
    Path(paths.config).write_text("a: 1\n")
    copy_history(*pair, "run", source_root=pair[0].root, target_root=pair[1].root)
    assert not Path(there.config).exists()
    copy_history(*pair, "run", source_root=pair[0].root, target_root=pair[1].root, config="a: 1\n")
    assert sha256(Path(there.config).read_bytes()) == sha256(b"a: 1\n")
    Path(paths.config).write_text("b: 2\n")  # after it was checked
    with pytest.raises(TransferError, match=r"run\.yaml of one:.*changed while it was copied"):
        copy_history(*pair, "run", source_root=pair[0].root, target_root=pair[1].root, config="a: 3\n")
    assert Path(there.config).read_text() == "a: 1\n"
