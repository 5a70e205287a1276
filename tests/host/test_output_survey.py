"""Checkpoints and metrics that a trainer has written, as `--init-run` finds them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from midstream_host.trainers import output_survey
from midstream_host.trainers.output_survey import MetricsFile, survey_output


def write(root: Path, *names: str, text: str = "x") -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_checkpoints_and_metrics_are_found_where_they_are(tmp_path: Path) -> None:
    write(
        tmp_path, "runs/a/ckpt-100.pt", "runs/a/ckpt-200.pt", "runs/a/best.pt", "runs/a/checkpoint-5/model.safetensors"
    )
    write(tmp_path, "runs/a/m.jsonl", text='{"config": 1}\n{"step": 1, "loss": 2.5}\n{"step": 2, "lo')
    write(tmp_path, "runs/a/m.csv", text="iteration,train_loss\n0,2.5\n")
    write(tmp_path, "runs/a/tb/events.out.tfevents.1.host", "notes.jsonl", "data-1.csv")
    write(tmp_path, ".venv/lib/step-7.pt", "venv/step-7.pt", ".git/step-7.pt", "a/b/c/d/e/f/step-9.pt")
    found = survey_output(str(tmp_path))
    assert set(found.checkpoints) == {"runs/a/ckpt-100.pt", "runs/a/ckpt-200.pt", "runs/a/checkpoint-5"}
    assert set(found.metrics) == {
        MetricsFile("runs/a/m.jsonl", "jsonl", 1),
        MetricsFile("runs/a/m.csv", "csv", 0),
        MetricsFile("runs/a/tb/events.out.tfevents.1.host", "tensorboard"),
    }
    assert found.complete


def test_newest_checkpoint_is_first_and_links_are_not_followed(tmp_path: Path) -> None:
    write(tmp_path, "a/step-2.pt", "b/step-1.pt")
    os.utime(tmp_path / "a/step-2.pt", (1, 1))
    (tmp_path / "loop").symlink_to(tmp_path)
    assert survey_output(str(tmp_path)).checkpoints == ["b/step-1.pt", "a/step-2.pt"]


def test_a_large_tree_is_looked_at_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_survey, "MAX_ENTRIES", 5)
    write(tmp_path, *(f"step-{number}.pt" for number in range(9)))
    found = survey_output(str(tmp_path))
    assert len(found.checkpoints) == 5
    assert not found.complete


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        survey_output(str(tmp_path / "missing"))
