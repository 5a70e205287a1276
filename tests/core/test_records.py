"""The records that both programs share: fence, lineage, manifest, status."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from midstream_core import records
from midstream_core.json_types import JsonObject
from support.migrations.spliced_rows import splice
from support.paths import REPOSITORY


def test_record_is_read_again_after_each_change(tmp_path: Path) -> None:
    """What was decoded is remembered by its bytes, not by name or time."""
    path, other = str(tmp_path / "fence.json"), str(tmp_path / "other.json")
    for file, owner in ((path, "a"), (other, "a"), (path, "b")):
        records.first_fence(owner).write(file)
        os.utime(file, (1.0, 1.0))
        assert records.Fence.read(file).owner == owner
    for file in (path, other):
        Path(file).write_text("{}")
        with pytest.raises(records.DamagedRecordError, match=f"{file}: lacks epoch"):
            records.Fence.read(file)


def test_fence_accepts_sealed_epoch_up_to_its_seal() -> None:
    fence = records.first_fence("a").sealed(2, "b", 100)
    assert fence.accepts(1, 100)
    assert not fence.accepts(1, 101)
    assert fence.accepts(2, 10_000)


def test_fence_refuses_old_epochs_past_their_own_seals() -> None:
    fence = records.first_fence("a").sealed(2, "b", 100).sealed(3, "c", 200)
    assert not fence.accepts(1, 150)
    assert fence.accepts(2, 150)
    assert not fence.accepts(2, 201)


def test_fence_after_rollback_refuses_the_target() -> None:
    fence = records.first_fence("a").sealed(2, "b", 100).sealed(3, "a", 100)
    assert not fence.accepts(2, 101)
    assert fence.accepts(1, 100)
    assert fence.accepts(3, 101)


def test_remove_unfinished_files_removes_a_write_in_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"old")

    def exit_while_writing(_descriptor: int) -> None:
        assert len(list(tmp_path.iterdir())) == 2
        records.remove_unfinished_files()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", exit_while_writing)
        with pytest.raises(KeyboardInterrupt):
            records.write_bytes(str(path), b"new")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("run.yaml", b"old")]
    records.write_bytes(str(path), b"new")
    records.remove_unfinished_files()  # there is none
    assert path.read_bytes() == b"new"


def test_rollback_accepts_the_sources_steps_past_the_seal() -> None:
    moved = records.first_fence("a").sealed(2, "b", 30)  # the source had saved step 45, and 30 was chosen
    assert not moved.accepts(1, 45)
    back = moved.rolled_back("a", 45)
    assert (back.epoch, back.owner, back.sealed_step) == (3, "a", 45)
    assert back.accepts(1, 45)
    assert not back.accepts(1, 46)
    assert not back.accepts(2, 31), "nothing of the target's"
    assert back.accepts(3, 46)
    again = back.sealed(4, "b", 60)
    assert again.accepts(1, 45)
    assert not again.accepts(2, 31)
    assert again.accepts(3, 60)
    assert not again.accepts(3, 61)


def test_earlier_seal_limits_all_earlier_epochs() -> None:
    fence = records.first_fence("a").sealed(2, "b", 100).sealed(3, "c", 80)
    assert not fence.accepts(1, 90)
    assert fence.accepts(1, 80)


def test_fence_epoch_never_decreases() -> None:
    fence = records.first_fence("a").sealed(2, "b", 100)
    with pytest.raises(records.RecordError, match="already at ownership 2"):
        fence.sealed(2, "c", 100)


def test_splice_takes_the_newest_accepted_attempt_per_step() -> None:
    lineage = records.Lineage("r")
    for attempt, epoch in ((1, 1), (2, 1), (3, 2)):
        lineage = lineage.with_entry(records.LineageEntry(attempt, epoch, "t", 1, "cpu", 0))
    rows = {
        1: [{"global_step": step, "train/loss": 10.0 + step} for step in range(6)],
        2: [{"global_step": step, "train/loss": 20.0 + step} for step in range(4, 9)],  # restarted from step 4
        3: [{"global_step": step, "train/loss": 30.0 + step} for step in range(7, 9)],  # moved at step 7
    }
    fence = records.first_fence("a").sealed(2, "b", 7)
    spliced = splice(rows, lineage, fence)
    assert [(row["global_step"], row["attempt"]) for row in spliced] == [
        (0, 1), (1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2), (7, 3), (8, 3),
    ]  # fmt: skip


def test_parse_metrics_allows_partial_last_line_only() -> None:
    complete = json.dumps({"global_step": 0})
    assert records.parse_metrics([complete, '{"global_st']) == [{"global_step": 0}]
    with pytest.raises(records.RecordError, match="line 1 is partial"):
        records.parse_metrics(['{"global_st', complete])


def test_failed_atomic_write_keeps_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    records.write_json(str(path), {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        records.write_json(str(path), {"a": float("nan")})
    assert records.read_json(str(path)) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


def test_manifest_with_outside_path_is_refused() -> None:
    value = {
        "format": records.FORMAT, "version": 2, "run_id": "r", "step": 1, "attempt": 1, "epoch": 1, "created": 0.0,
        "root_digest": "", "arrays": [], "objects": [{"path": "../../etc/passwd", "size": 1, "sha256": ""}],
    }  # fmt: skip
    with pytest.raises(records.RecordError, match="leaves the directory"):
        records.Manifest.from_json(value)


@pytest.mark.parametrize("path", ["", "/a", "../a", "a/../b", "a//b", "./a", "a\0b"])
def test_safe_relative_refuses_unsafe_paths(path: str) -> None:
    assert not records.safe_relative(path)


def test_is_running_refuses_reused_pids() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = records.identify(child.pid)
    assert identity is not None
    assert records.is_running(identity)
    assert not records.is_running(records.ProcessIdentity(identity.boot_id, identity.pid, identity.start_ticks + 1))
    assert not records.is_running(records.ProcessIdentity("another-boot", identity.pid, identity.start_ticks))
    child.communicate(b"\n")
    assert not records.is_running(identity)


def test_is_running_refuses_zombies() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    identity = records.identify(child.pid)
    # Waits for the exit and leaves the zombie unreaped.
    import os

    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert identity is None or not records.is_running(identity)
    child.wait()


def test_records_ignore_new_fields_and_name_missing_ones() -> None:
    assert records.Fence.from_json({"epoch": 2, "owner": "a", "novelty": 1}).epoch == 2
    with pytest.raises(records.RecordError, match=r"fence\.json: lacks owner"):
        records.Fence.from_json({"epoch": 2}, "fence.json")


@pytest.mark.parametrize(
    ("kind", "value"), [(records.Fence, {"epoch": 1, "owner": "a"}), (records.Command, {"action": records.SAVE})]
)
def test_newer_format_is_refused_and_none_is_the_first(
    kind: type[records.JsonRecord], value: JsonObject, tmp_path: Path
) -> None:
    record = kind.from_json(value)
    assert record.to_json()["format"] == kind.FORMAT == 1
    assert kind.from_json(record.to_json()) == record
    path = tmp_path / "file.json"
    records.write_json(str(path), {"format": 2, "fields": "of a newer version"})
    line = f"{path}: format 2 is newer than this midstream reads \\(1\\): update midstream"
    with pytest.raises(records.NewerFormatError, match=line):
        kind.read(str(path))
    with pytest.raises(records.RecordError, match="x: format: expected an integer from 1 on, found 'two'"):
        kind.from_json({**value, "format": "two"}, "x")


def test_root_digest_ignores_the_order_of_arrays() -> None:
    one = records.ArrayEntry("b", ["embed"], [4], "float32", [2], ["b/0", "b/1"])
    two = records.ArrayEntry("a", [], [], "int32", [], ["small"])
    hashes = {"b/0": "00", "b/1": "11", "small": "22"}
    digest = records.root_digest([one, two], hashes, {"step": 3})
    assert digest == records.root_digest([two, one], hashes, {"step": 3})
    assert digest != records.root_digest([two, one], {**hashes, "b/1": "12"}, {"step": 3})
    assert digest != records.root_digest([two, one], hashes, {"step": 4})


def test_data_digests_lists_train_and_validation_caches() -> None:
    train = {
        "state": {"data_digest": "t"},
        "provenance": {
            "config": {"data": {"cache_dir": None}},
            "validation": {"b": {"digest": "vb"}, "a": {"digest": "va"}, "c": {"digest": "t"}},
        },
    }
    assert records.data_digests(train) == ["t", "va", "vb"]
    assert records.data_digests({"state": {"data_digest": "t"}}) == ["t"]
    train["provenance"]["config"]["data"]["cache_dir"] = "gs://bucket/caches"
    assert records.data_digests(train) == []


def test_names_that_the_programs_use_load_with_their_first_use() -> None:
    """The type checker reads the imports of the package; a program loads the module that its table has for a name."""
    table = records._MODULE_OF
    for name, module in table.items():
        assert getattr(records, name) is getattr(importlib.import_module(f"midstream_core.records.{module}"), name)
    used = set[str]()
    for folder in ("app", "engine", "tests", "benchmarks", "tools"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            text = path.read_text()
            used.update(re.findall(r"(?<![\w.\"])records\.([A-Za-z]\w*)", text) if "import records\n" in text else ())
            for names in re.findall(
                r"^ *from midstream_core\.records import (?:\(([^)]*)\)|(.*))$", text, re.MULTILINE
            ):
                used.update(re.findall(r"(?<!as )\b[A-Za-z]\w*", re.sub(r"#.*| as \w+", "", "".join(names))))
    modules = {path.stem for path in Path(records.__file__).parent.glob("*.py")}
    assert sorted(used - set(table) - modules) == ["Manifests"]  # below
    with pytest.raises(AttributeError, match="'Manifests'"):
        records.Manifests  # noqa: B018 # pyright: ignore[reportAttributeAccessIssue]
