"""Damaged records of a run: which a repair may replace, and which a newer midstream wrote."""

import subprocess
import sys
from pathlib import Path

import pytest

from midstream.migrate.repair import history_repair
from midstream.migrate.repair.repair_proposal import UndeterminedError
from midstream.migrate.repair.run_evidence import FleetEvidence
from midstream_core import records
from midstream_core.records import process_identity
from midstream_host.runs import damaged_records, record_repair, run_state
from support.run_directory import RunDirectory, dead_process


@pytest.mark.parametrize(("name", "kind"), [("command", records.Command), ("parameter_drift", records.ParameterDrift)])
def test_kind_of_record_of_an_attempt(name: str, kind: type[records.JsonRecord]) -> None:
    assert damaged_records.kind_of(f"attempts/001/{name}.json") is kind


def test_record_of_a_newer_midstream_is_never_replaced(run: RunDirectory) -> None:
    root, run_id = run.paths.root, run.paths.run_id
    records.write_json(run.paths.fence, {"format": 2, "epochs": [1, 2]})
    records.write_bytes(run.paths.lineage, b'{"run_')
    evidence = record_repair.evidence(root, run_id)
    assert sorted(evidence.damaged) == ["fence.json", "lineage.json"]
    assert evidence.newer == ["fence.json"]
    with pytest.raises(records.NewerFormatError, match=r"fence\.json: format 2 is newer than .*: update midstream"):
        damaged_records.refuse(root, run_id)
    with pytest.raises(run_state.RefusedError, match=r"a newer midstream wrote fence\.json"):
        record_repair.put(root, run_id, "fence.json", records.first_fence("here").to_json())
    assert records.read_json(run.paths.fence) == {"format": 2, "epochs": [1, 2]}


def test_engine_of_another_attempt_leaves_a_status_to_repair(run: RunDirectory) -> None:
    """On the old code no record of an earlier attempt was repaired while any engine of the run worked."""
    Path(run.attempt(1).status()).write_bytes(b"{")
    code = "import sys; print('began', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, "midstream_engine.train", run.paths.run_id]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        assert engine.stdout.readline() == b"began\n"
        [first] = record_repair.evidence(run.paths.root, run.paths.run_id).attempts
        assert f"(pid {engine.pid})" in first.running, "it may be of this attempt"
        run.status(2, records.TRAINING, 5, process_identity.identify(engine.pid))
        first, second = record_repair.evidence(run.paths.root, run.paths.run_id).attempts
        assert (first.running, f"(pid {engine.pid})" in second.running) == ("", True)
        engine.communicate()


def test_status_of_a_copied_attempt_is_that_of_its_host(tmp_path: Path) -> None:
    """On the old code it was undetermined: the launch of an attempt is not copied."""
    one, two = RunDirectory(tmp_path / "one"), RunDirectory(tmp_path / "two")
    for place in (one, two):
        place.lineage({"attempt": 1, "epoch": 1, "target": "one"})
    one.status(1, records.STOPPED, 20, dead_process())
    Path(two.attempt(1).status()).write_bytes(b"{")
    shown = {name: record_repair.evidence(place.paths.root, "run") for name, place in (("one", one), ("two", two))}
    gathered = FleetEvidence("run", shown, {}, targets={"one": ("one",), "two": ("two",)})
    status, evidence = history_repair.lost_status(gathered, "two", 1, 0, None)
    assert status == records.Status.read(one.attempt(1).status())
    assert evidence == ["lineage: attempt 1 ran on one, which has this status of it"]
    elsewhere = FleetEvidence("run", shown, {}, targets={"one": ("one", "two")})
    with pytest.raises(UndeterminedError, match=r"launch\.json"):
        history_repair.lost_status(elsewhere, "two", 1, 0, None)
