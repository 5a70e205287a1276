"""Damaged records of a run: which a repair may replace, and which a newer midstream wrote."""

import pytest

from midstream_core import records
from midstream_host.runs import damaged_records, record_repair, run_state
from support.run_directory import RunDirectory


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
