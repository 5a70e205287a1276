"""Checkpoints that trainers wrote, of each rule of completeness, and what is found of a copy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from midstream_host.driver.checkpoints.checkpoint import Checkpoint
from midstream_host.driver.checkpoints.checkpoint_finder import find_checkpoints


class Case(NamedTuple):
    """A checkpoint that a trainer wrote. ``optional``: files that a resume does not need."""

    rule: str
    run: str
    path: str
    step: int
    ranks: int | None
    optional: str = r"(?!)"
    unchecked: str = r"(?!)"  # files without a size outside of them: they are only seen to be there


CASES = {
    "huggingface": Case(
        "huggingface", "trainers/huggingface", "checkpoint-6", 6, 2, r"config\.json|training_args\.bin",
        r"config\.json|training_args\.bin",
    ),
    "lightning": Case(
        "lightning", "trainers/lightning", "lightning_logs/version_0/checkpoints/epoch=0-step=6.ckpt", 6, 1
    ),
    "accelerate": Case("accelerate", "trainers/accelerate", "step_4", 4, 2, r"scheduler\.bin|dl_state_dict\.bin"),
    "dcp": Case("dcp", "trainers/dcp", "step-4", 4, 2),
    "dcp without collectives": Case("dcp", "trainers/dcp-alone", "step-4", 4, 2),
    "script": Case("glob", "trainers/script", "ckpt.pt", 4, None),
    "deepspeed zero 1": Case("deepspeed", "trainers/deepspeed", "global_step4", 4, 2),
    "deepspeed zero 3": Case("deepspeed", "trainers/deepspeed-zero3", "global_step4", 4, 2),
    "deepspeed": Case("deepspeed", "neox/pythia-bf16-z1-dp3", "global_step3", 3, 3, r"configs/.*", r"configs/.*"),
    "deepspeed pipeline": Case(
        "deepspeed", "neox/llama-bf16-z1-tp2-pp2-dp2", "global_step3", 3, 8, r"configs/.*|layer_0[14]-model_0.*",
        r"configs/.*",
    ),
    "levanter": Case("levanter", "levanter/gpt2", "step-3", 4, None, r"d/.*", r"d/.*"),
    "orbax": Case(
        "orbax", "trainers/orbax", "4", 4, 1,
        r".*process_0/d/.*|.*_sharding|.*array_metadatas/.*|.*commit_success\.txt|_CHECKPOINT_METADATA",
        r".*/d/.*|.*commit_success\.txt",
    ),
}  # fmt: skip


each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def look(case: Case, path: Path, ranks: int | None = None) -> Checkpoint:
    """Return what is found of one checkpoint."""
    pattern = "/".join(re.sub(r"([\[\]])", r"[\1]", part) for part in case.path.split("/"))
    directory = Path(str(path)[: -len(case.path)])
    (found,) = find_checkpoints(case.rule, str(directory), pattern, ranks if ranks is not None else case.ranks)
    return found


def refused(case: Case, path: Path) -> str:
    """The reason why a checkpoint is refused."""
    found = look(case, path)
    assert not found.complete
    assert found.reason
    assert "\n" not in found.reason
    return found.reason


def files_of(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
