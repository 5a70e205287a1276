"""Checkpoint inspection by the command line: verdicts, norms and trees, on disk and in a bucket."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midstream.cli import main
from midstream.errors import Exit
from midstream_core.records import (
    MANIFEST,
    PACKED,
    Fence,
    Manifest,
    Pin,
    RunPaths,
    Status,
    Store,
    this_process,
    write_json,
)
from midstream_engine.checkpoint.array_names import flatten
from midstream_host.verify import array_check, decode
from simulators.object_stores.bucket import BucketServer
from support.checkpoints.checkpoint_states import plain_state, save


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(str(tmp_path / "root"), "run")


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def state() -> dict[str, Any]:
    """State with non-finite values and an element type of each kind."""
    tree = plain_state()
    tree["model"]["bias"][:3] = [np.nan, np.inf, -np.inf]
    tree["model"]["tiny"] = np.arange(7, dtype=np.float16)
    tree["model"]["double"] = np.array([-1e300, 2.5])
    return tree


def expected() -> dict[str, tuple[float, int]]:
    """Norm of the finite elements and number of the others, by array."""
    result = {}
    for name, array in flatten(state()).items():
        values = np.asarray(array.value).astype(np.float64).reshape(-1)
        finite = values[np.isfinite(values)]
        result[name] = float(np.linalg.norm(finite / 1e150) * 1e150), values.size - finite.size
    return result


def check_norms(found: dict[str, dict[str, Any]]) -> None:
    wanted = expected()
    assert found.keys() == wanted.keys()
    for name, (norm, not_finite) in wanted.items():
        if name != "model/double":  # its square is beyond float64
            assert math.isclose(found[name]["norm"], norm, rel_tol=1e-12), name
        assert found[name]["not_finite"] == not_finite, name


def examined(directory: str, capfdbinary: Any, **more: Any) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Run ``decode`` on this host; return arrays by name, and the verdict."""
    assert decode.examine(directory) == 0
    reports = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    return {report["name"]: report for report in reports if report["event"] == "array"}, reports[-1]


# ------------------------------------------------------------------------------------------------- --verify, --deep


def test_deep_verify_decodes_measures_and_recomputes_digest(
    paths: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = state()
    del tree["model"]["double"]
    saved = save(paths, tree)
    assert main(["--verify", paths.checkpoint(saved.name), "--deep", "--json"]) == Exit.DONE
    *arrays, result = lines(capsys)
    assert (result["ok"], result["root_digest"], result["deep"]) == (True, saved.root_digest, True)
    found = {array["name"]: array for array in arrays}
    wanted = expected()
    assert found.keys() == wanted.keys() - {"model/double"}
    for name, array in found.items():
        assert math.isclose(array["norm"], wanted[name][0], rel_tol=1e-12)
        assert array["not_finite"] == wanted[name][1]


def test_stdlib_decoder_reaches_the_same_verdict(paths: RunPaths, capfdbinary: Any) -> None:
    saved = save(paths, state())
    arrays, verdict = examined(paths.checkpoint(saved.name), capfdbinary)
    check_norms(arrays)
    assert (verdict["recomputed"], verdict["problems"], verdict["extra"]) == (saved.root_digest, [], [])
    assert {array["by"] for array in arrays.values()} == {"the standard library"}


def spoil_consistently(paths: RunPaths, path: str, data: bytes) -> None:
    """Change an object and its entries in the manifest, as a faulty program would."""
    import hashlib

    from midstream_core.records import root_digest

    (found,) = Path(paths.checkpoints).iterdir()
    (found / path).write_bytes(data)
    value = json.loads((found / MANIFEST).read_bytes())
    for entry in value["objects"]:
        if entry["path"] == path:
            entry.update(sha256=hashlib.sha256(data).hexdigest(), size=len(data), crc32c="")
    manifest = Manifest.from_json(value)
    state = json.loads((found / "train.json").read_bytes())["state"]
    hashes = {entry.path: entry.sha256 for entry in manifest.object_entries}
    value["root_digest"] = root_digest(manifest.array_entries, hashes, state)
    write_json(str(found / MANIFEST), value)


@pytest.mark.parametrize("what", ["crc32c", "order", "description"])
def test_deep_verify_finds_damage_with_valid_hashes(paths: RunPaths, capfdbinary: Any, what: str) -> None:
    """A checkpoint with correct hashes that was written wrongly."""
    saved = save(paths, plain_state())
    directory = Path(paths.checkpoint(saved.name))
    if what == "crc32c":
        path = "arrays/model/wide/c/0/1"
        data = (directory / path).read_bytes()[:-4] + b"\0\0\0\0"
    elif what == "order":
        path, raw = PACKED, (directory / PACKED).read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header = dict(reversed(json.loads(raw[8 : 8 + length]).items()))
        text = json.dumps(header, separators=(",", ":")).encode()
        data = raw[:8] + text.ljust(length) + raw[8 + length :]
    else:
        path = "arrays/model/half/zarr.json"
        data = (directory / path).read_bytes().replace(b"bfloat16", b"float16 ").replace(b'16 "', b'16"')
    spoil_consistently(paths, path, data)
    assert main(["--verify", str(directory)]) == Exit.DONE
    assert main(["--verify", str(directory), "--deep"]) == Exit.FAILED
    assert path in capfdbinary.readouterr().out.decode()
    _, verdict = examined(str(directory), capfdbinary)
    assert verdict["problems"], what


def test_bucket_verify_without_engine_and_deep_verify_with_it(
    paths: RunPaths, bucket: BucketServer, capsys: pytest.CaptureFixture[str]
) -> None:
    there = RunPaths(paths.root, "run", "gs://runs/lab")
    os.makedirs(there.dir)
    saved = save(there, plain_state())
    url = there.checkpoint(saved.name)
    for flags in ([], ["--deep"]):
        assert main(["--verify", url, *flags, "--json"]) == Exit.DONE
        *arrays, result = lines(capsys)
        assert (result["ok"], result["checkpoint"], result["root_digest"]) == (True, url, saved.root_digest)
        assert len(arrays) == (len(saved.arrays) if flags else 0)
    prefix = f"lab/runs/run/checkpoints/{saved.name}/"
    blob = bucket.blobs("runs", prefix)[f"{prefix}arrays/model/wide/c/0/1"]
    bucket.put("runs", blob.name, blob.data[:-9] + b"x" + blob.data[-8:])
    bucket.delete("runs", f"{prefix}small.safetensors", {})
    for flags in ([], ["--deep"]):
        assert main(["--verify", url, *flags]) == Exit.FAILED
        out = capsys.readouterr().out
        assert f"{url}/small.safetensors: missing" in out
        assert f"{url}/arrays/model/wide/c/0/1: SHA-256" in out
    assert main(["--verify", "gs://runs/lab/nothing"]) == Exit.FAILED
    assert "gs://runs/lab/nothing: there is no manifest.json" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------- --checkpoints as a tree


def test_tree_reads_manifest_and_computes_norms_at_the_data(
    paths: RunPaths, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    saved = save(paths, plain_state())
    directory = Path(paths.checkpoint(saved.name))
    assert main(["--checkpoints", str(directory), "--deep"]) == Exit.DONE
    out = capsys.readouterr().out.splitlines()
    norm = float(np.linalg.norm(plain_state()["model"]["wide"].astype(np.float64)))
    (wide,) = [line.split() for line in out if line.split()[0] == "wide"]
    assert wide == ["wide", "[dim_0=512,", "dim_1=2048]", "float32", "4.2", "MB", "2", "chunks", "norm", f"{norm:.6g}"]
    os.makedirs(paths.attempts)
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f"hosts:\n  here: {{type: local, root: {paths.root}}}\n")
    for path in directory.rglob("*"):
        if path.is_file() and path.name != MANIFEST:
            path.unlink()
    for arguments in ([str(directory), "--tree"], [f"here:{directory}"], ["run", "--tree"]):
        assert main(["--fleet", str(fleet), "--checkpoints", *arguments]) == Exit.DONE
        out = capsys.readouterr().out.splitlines()
        assert out[1].endswith(f"root digest {saved.root_digest}")
        (wide,) = [line.split() for line in out if line.split()[0] == "wide"]
        assert wide[-2:] == ["2", "chunks"]
        assert next(line for line in out if line.startswith("model/")).split()[-2:] == ["5.8", "MB"]


@pytest.mark.usefixtures("bucket")
def test_checkpoints_in_bucket_and_on_disk_are_compared(paths: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    there = RunPaths(paths.root, "run", "gs://runs/lab")
    os.makedirs(there.dir)
    other = plain_state()
    other["key"][0] ^= 1
    names = [save(there, plain_state()).name, save(paths, other).name]
    assert main(["--diff", there.checkpoint(names[0]), paths.checkpoint(names[1])]) == Exit.FAILED
    assert capsys.readouterr().out.splitlines()[2:] == ["~ key: differs (2 elements)"]


@pytest.mark.parametrize("arguments", [["--deep", "--status"], ["--tree"], ["--checkpoints", "--tree"]])
def test_checkpoint_flags_without_effect_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == Exit.USAGE
    assert "goes with" in capsys.readouterr().err


def test_engine_of_host_root_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an engine in this interpreter: the newest engine with a working environment."""
    import sys

    root = tmp_path / "root"
    for folder in ("engines/abc", "envs/def/bin"):
        (root / folder).mkdir(parents=True)
    for stamped in ("engines/abc", "envs/def"):
        (root / stamped / ".complete.json").write_text("{}")
    (root / "envs/def/bin/python").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    package = root / "engines/abc/midstream_engine"
    (package / "checkpoint/loading").mkdir(parents=True)
    for name in (
        "__init__.py",
        "checkpoint/__init__.py",
        "checkpoint/loading/__init__.py",
        "checkpoint/loading/verify.py",
    ):
        (package / name).write_text("")
    found = array_check.find_engine(str(root))
    assert found == (str(root / "envs/def/bin/python"), str(root / "engines/abc"))
    assert array_check.find_engine(str(tmp_path / "empty")) is None


# ------------------------------------------------------------------------------- a run that keeps them in a bucket


@pytest.fixture
def bucket_run(paths: RunPaths, bucket: BucketServer, tmp_path: Path) -> tuple[RunPaths, str]:
    """Two checkpoints in the bucket, and a fleet file that names the host only."""
    there = RunPaths(paths.root, "run", "gs://runs/lab")
    os.makedirs(there.attempts)
    Store(there.store).write(there.store_file)
    for step in (7, 9):
        save(there, plain_state(step), step=step)
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f"hosts:\n  here: {{type: local, root: {paths.root}}}\n")
    return there, str(fleet)


def test_bucket_run_lists_checkpoints_and_name_is_newest(
    bucket_run: tuple[RunPaths, str], bucket: BucketServer, capsys: pytest.CaptureFixture[str]
) -> None:
    there, fleet = bucket_run
    prefix = "lab/runs/run"
    bucket.put("runs", f"{prefix}/checkpoints/step-11-a001/train.json", b"half")
    bucket.put("runs", f"{prefix}/pins/m.json", json.dumps(Pin("step-7-a001", 1e12).to_json()).encode())
    seal = Fence(1, "here").sealed(2, "there", 7)
    bucket.put("runs", f"{prefix}/fence.json", json.dumps(seal.to_json()).encode())
    assert main(["--fleet", fleet, "--json", "--checkpoints", "run"]) == Exit.DONE
    found = {line["name"]: (line["complete"], line["accepted"], line["pinned"]) for line in lines(capsys)}
    assert found == {
        "step-7-a001": (True, True, True),
        "step-9-a001": (True, False, False),  # past the seal
        "step-11-a001": (False, False, False),
    }
    assert main(["--fleet", fleet, "--json", "--verify", "run"]) == Exit.DONE
    (result,) = lines(capsys)
    assert result["checkpoint"] == there.checkpoint("step-7-a001")


def test_bucket_leftovers_are_removed_only_on_request(
    bucket_run: tuple[RunPaths, str],
    bucket: BucketServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there, fleet = bucket_run
    identity = this_process().to_json()
    os.makedirs(there.attempt(1).dir)
    ended = Status(state="stopped", step=9, process=0, heartbeat=time.time(), **{**identity, "start_ticks": 1})
    ended.write(there.attempt(1).status())
    prefix = "lab/runs/run/checkpoints"
    partial_save, fresh, trash = f"{prefix}/step-11-a001", f"{prefix}/step-12-a001", f"{prefix}/.trash-step-3-a001"
    then = time.time() - 3600
    with monkeypatch.context() as earlier:
        earlier.setattr("simulators.object_stores.bucket_objects.time.time", lambda: then)
        for name in (f"{partial_save}/train.json", f"{partial_save}/arrays/x/c/0", f"{trash}/manifest.json"):
            bucket.put("runs", name, b"left")
    bucket.put("runs", f"{fresh}/train.json", b"half")
    before = set(bucket.blobs("runs"))

    def clean(*flags: str) -> dict[str, dict[str, Any]]:
        assert main(["--fleet", fleet, "--json", "--clean", "run", *flags]) == Exit.DONE
        return {line["path"]: line for line in lines(capsys) if line["event"] == "leftover"}

    found = clean()
    assert {path.removeprefix("gs://runs/"): entry["kind"] for path, entry in found.items()} == {
        partial_save: "partial", fresh: "partial", trash: "trash",
    }  # fmt: skip
    assert "a program may be writing it" in found[f"gs://runs/{fresh}"]["kept"]
    assert set(bucket.blobs("runs")) == before
    clean("--yes")
    deleted = {f"{partial_save}/train.json", f"{partial_save}/arrays/x/c/0", f"{trash}/manifest.json"}
    assert set(bucket.blobs("runs")) == before - deleted
    status = Status(state="training", step=9, process=0, heartbeat=time.time(), **identity)
    status.write(there.attempt(1).status())
    with monkeypatch.context() as earlier:
        earlier.setattr("simulators.object_stores.bucket_objects.time.time", lambda: then)
        bucket.put("runs", f"{partial_save}/train.json", b"left")
    assert clean("--yes")[f"gs://runs/{partial_save}"]["kept"] == "attempt 1 is running"
