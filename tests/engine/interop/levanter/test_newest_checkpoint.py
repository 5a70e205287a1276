"""The newest checkpoint of a run of Levanter, in the plan and in the import, as its own release chooses it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from midstream.migrate.planning.import_plan import _places
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.levanter.arrays import find
from midstream_engine.interop.levanter.importer import open_levanter
from midstream_host.trainers import checkpoint_survey
from support.paths import FIXTURES

GPT2 = FIXTURES / "levanter" / "gpt2"


def checkpoint(directory: Path, step: int, time: str, *, by_time: bool) -> Path:
    """Write what shows a finished checkpoint: Levanter 1.2 has zarr 2, later releases have OCDBT."""
    path = directory / f"step-{step}"
    path.mkdir(parents=True)
    (path / "metadata.json").write_text(json.dumps({"step": step, "timestamp": time, "is_temporary": False}))
    if not by_time:
        (path / "manifest.ocdbt").write_bytes(b"x")
    return path


def chosen(run: Path) -> str:
    """Return the name of the checkpoint that plan and import choose."""
    shutil.copy(GPT2 / "config.yaml", run) if not (run / "config.yaml").exists() else None
    survey = checkpoint_survey.survey(path=str(run))
    assert survey.directory == find(str(run), str(run / "config.yaml"))
    return str(Path(survey.directory).relative_to(run.parent))


@pytest.mark.parametrize(("by_time", "newest"), [(True, "run/step-120"), (False, "run/step-500")])
def test_run_that_went_back(tmp_path: Path, *, by_time: bool, newest: str) -> None:
    """Levanter 1.2 went on from step 100: the checkpoint of step 500 is of the branch that was left."""
    run = tmp_path / "run"
    for step, time in ((100, "2026-11-01T10:00:00"), (500, "2026-11-02T10:00:00"), (120, "2026-11-03T10:00:00.5")):
        checkpoint(run, step, time, by_time=by_time)
    checkpoint(run, 900, "2026-11-04T10:00:00", by_time=by_time).joinpath("metadata.json").unlink()
    assert chosen(run) == newest


def test_temporary_checkpoints_are_looked_at_too(tmp_path: Path) -> None:
    run = tmp_path / "run"
    checkpoint(run, 100, "2026-11-01T10:00:00", by_time=False)
    other = checkpoint(tmp_path / "temporary" / "run", 130, "2026-11-01T11:00:00", by_time=False)
    text = (GPT2 / "config.yaml").read_text()
    section = f"  checkpointer:\n    temporary_base_path: {tmp_path}/temporary\n"
    assert text.count("\ntrainer:\n") == 1
    (run / "config.yaml").write_text(text.replace("\ntrainer:\n", f"\ntrainer:\n{section}"))
    assert chosen(run) == "temporary/run/step-130"
    survey = checkpoint_survey.survey(path=str(run))
    [line] = _places(survey)
    assert line == f"checkpoints were looked for in {run} and {tmp_path}/temporary/run; the newest is {other}"
    shutil.rmtree(tmp_path / "temporary")
    assert chosen(run) == "run/step-100"
    [line] = _places(checkpoint_survey.survey(path=str(run)))
    assert f"{tmp_path}/temporary/run, was not looked at" in line


def test_temporary_checkpoint_is_imported_with_its_runs_settings(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copytree(GPT2 / "step-3", tmp_path / "temporary" / "run" / "step-3")
    text = (GPT2 / "config.yaml").read_text()
    added = f"\ntrainer:\n  checkpointer:\n    temporary_base_path: {tmp_path}/temporary\n"
    (run / "config.yaml").write_text(text.replace("\ntrainer:\n", added))
    assert open_levanter(str(run), without_data=True).step == 3


def test_run_without_a_finished_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "step-3").mkdir()
    (tmp_path / "step-3" / "metadata.json").write_text("{}")
    with pytest.raises(ConversionError, match="none was finished"):
        find(str(tmp_path))
    with pytest.raises(ValueError, match=r"no checkpoint with a metadata\.json that has a step"):
        checkpoint_survey.survey(path=str(tmp_path))
