"""``train.json`` of a save may be made while the arrays are written; without it there is no checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from midstream_core.attempt.errors import CheckpointError
from midstream_core.records import MANIFEST, PACKED, TRAIN, RunPaths
from midstream_engine.checkpoint.loading.checkpoint_records import read_train
from midstream_engine.checkpoint.saving.checkpoint_writer import train_document
from midstream_engine.checkpoint.saving.save import PendingSave, begin_save
from midstream_engine.checkpoint.saving.snapshot import Copy
from support.checkpoints.checkpoint_states import PROVENANCE, REFERENCE_LOSSES, STATE, plain_state, save


class Late:
    """A run with a save of step 7; its document is made when it is needed."""

    def __init__(self, root: Path, error: Exception | None = None) -> None:
        self.paths, self.error = RunPaths(str(root), "run"), error
        self.directory = Path(self.paths.checkpoint("step-7-a001"))
        self.there: list[str] = []  # objects that had been written by then

    def document(self) -> dict[str, Any]:
        self.there = [
            os.path.relpath(os.path.join(parent, name), self.directory)
            for parent, _, names in os.walk(self.directory)
            for name in names
        ]
        if self.error is not None:
            raise self.error
        return train_document(STATE, PROVENANCE, REFERENCE_LOSSES)

    def begin(self) -> PendingSave:
        return begin_save(self.paths, plain_state(), self.document, step=7, attempt=1, epoch=1, copy=Copy.NONE)


def test_document_is_needed_once_the_arrays_are_written(tmp_path: Path) -> None:
    late = Late(tmp_path)
    manifest = late.begin().finish()
    written = {entry.path for entry in manifest.object_entries}
    assert PACKED in written
    assert set(late.there) == written - {TRAIN}
    assert read_train(str(late.directory))["state"] == STATE
    assert manifest.root_digest == save(RunPaths(str(tmp_path), "other"), plain_state()).root_digest


@pytest.mark.parametrize("error", [CheckpointError("losses"), RuntimeError("losses")], ids=["known", "unknown"])
def test_no_document_no_checkpoint(tmp_path: Path, error: Exception) -> None:
    late = Late(tmp_path, error)
    with pytest.raises(type(error), match="losses"):
        late.begin().finish()
    assert late.there
    assert MANIFEST not in late.there
    assert not late.directory.exists()


def test_same_state_again_is_the_checkpoint_that_exists(tmp_path: Path) -> None:
    late = Late(tmp_path)
    assert late.begin().finish() == late.begin().finish()
