"""The schemas that both programs share."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from midstream_engine import records


def test_a_sealed_epoch_is_accepted_up_to_its_seal_and_no_further():
    fence = records.first_fence("a").sealed(2, "b", 100)
    assert fence.accepts(1, 100)
    assert not fence.accepts(1, 101)
    assert fence.accepts(2, 10_000)


def test_a_writer_sealed_two_moves_ago_does_not_slip_under_the_newest_seal():
    fence = records.first_fence("a").sealed(2, "b", 100).sealed(3, "c", 200)
    assert not fence.accepts(1, 150)
    assert fence.accepts(2, 150)
    assert not fence.accepts(2, 201)


def test_after_a_rollback_nothing_of_the_target_is_accepted():
    fence = records.first_fence("a").sealed(2, "b", 100).sealed(3, "a", 100)
    assert not fence.accepts(2, 101)
    assert fence.accepts(1, 100)
    assert fence.accepts(3, 101)


def test_a_rollback_gives_the_source_back_what_it_had_saved_past_the_seal():
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


def test_a_move_from_an_older_checkpoint_closes_what_earlier_epochs_had_past_it():
    fence = records.first_fence("a").sealed(2, "b", 100).sealed(3, "c", 80)
    assert not fence.accepts(1, 90)
    assert fence.accepts(1, 80)


def test_a_fence_never_goes_back():
    fence = records.first_fence("a").sealed(2, "b", 100)
    with pytest.raises(records.RecordError, match="already at epoch 2"):
        fence.sealed(2, "c", 100)


def test_the_spliced_curve_takes_each_step_from_the_newest_accepted_attempt():
    lineage = records.Lineage("r")
    for attempt, epoch in ((1, 1), (2, 1), (3, 2)):
        lineage = lineage.with_entry(records.LineageEntry(attempt, epoch, "t", 1, "cpu", 0))
    rows = {
        1: [{"global_step": step, "train/loss": 10.0 + step} for step in range(6)],
        2: [{"global_step": step, "train/loss": 20.0 + step} for step in range(4, 9)],  # restarted from step 4
        3: [{"global_step": step, "train/loss": 30.0 + step} for step in range(7, 9)],  # moved at step 7
    }
    fence = records.first_fence("a").sealed(2, "b", 7)
    spliced = records.splice(rows, lineage, fence)
    assert [(row["global_step"], row["attempt"]) for row in spliced] == [
        (0, 1), (1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2), (7, 3), (8, 3),
    ]  # fmt: skip


def test_a_torn_last_line_of_metrics_is_left_out_and_one_in_the_middle_is_an_error():
    whole = json.dumps({"global_step": 0})
    assert records.parse_metrics([whole, '{"global_st']) == [{"global_step": 0}]
    with pytest.raises(records.RecordError, match="line 1 is torn"):
        records.parse_metrics(['{"global_st', whole])


def test_atomic_writes_leave_the_old_content_when_they_fail(tmp_path: Path):
    path = tmp_path / "x.json"
    records.write_json(str(path), {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        records.write_json(str(path), {"a": float("nan")})
    assert records.read_json(str(path)) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


def test_a_manifest_that_reaches_outside_its_directory_is_refused():
    value = {
        "format": records.FORMAT, "version": 1, "run_id": "r", "step": 1, "attempt": 1, "epoch": 1, "created": 0.0,
        "root_digest": "", "arrays": [], "objects": [{"path": "../../etc/passwd", "size": 1, "sha256": ""}],
    }  # fmt: skip
    with pytest.raises(records.RecordError, match="leaves the directory"):
        records.Manifest.from_json(value)


@pytest.mark.parametrize("path", ["", "/a", "../a", "a/../b", "a//b", "./a", "a\0b"])
def test_unsafe_paths_are_recognised(path: str):
    assert not records.safe_relative(path)


def test_a_pid_that_was_reused_is_not_taken_for_the_process():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = records.identify(child.pid)
    assert identity is not None
    assert records.is_running(identity)
    assert not records.is_running(records.ProcessIdentity(identity.boot_id, identity.pid, identity.start_ticks + 1))
    assert not records.is_running(records.ProcessIdentity("another-boot", identity.pid, identity.start_ticks))
    child.communicate(b"\n")
    assert not records.is_running(identity)


def test_a_zombie_is_not_alive():
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    identity = records.identify(child.pid)
    # Waits for the exit and leaves the zombie unreaped.
    import os

    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert identity is None or not records.is_running(identity)
    child.wait()


def test_records_read_what_a_newer_version_wrote_and_name_what_is_missing():
    assert records.Fence.from_json({"epoch": 2, "owner": "a", "novelty": 1}).epoch == 2
    with pytest.raises(records.RecordError, match=r"fence\.json: lacks owner"):
        records.Fence.from_json({"epoch": 2}, "fence.json")


def test_the_root_digest_is_that_of_the_arrays_and_the_state_in_any_order():
    one = records.ArrayEntry("b", ["embed"], [4], "float32", [2], ["b/0", "b/1"])
    two = records.ArrayEntry("a", [], [], "int32", [], ["small"])
    hashes = {"b/0": "00", "b/1": "11", "small": "22"}
    digest = records.root_digest([one, two], hashes, {"step": 3})
    assert digest == records.root_digest([two, one], hashes, {"step": 3})
    assert digest != records.root_digest([two, one], {**hashes, "b/1": "12"}, {"step": 3})
    assert digest != records.root_digest([two, one], hashes, {"step": 4})


def test_the_token_caches_of_a_checkpoint_are_those_it_trains_on_and_is_evaluated_on():
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
