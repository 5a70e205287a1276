"""Contents of the checkpoints of another trainer's run, from their files.

Standard library only; runs on the host.
"""

from __future__ import annotations

import dataclasses
import posixpath
from typing import List, Optional, Tuple

from midstream.remote.declarations import reads
from midstream.remote.shapes import FileName, Text
from midstream_engine import records
from midstream_engine.foreign.checkpoints.checkpoint import IncompleteError
from midstream_engine.foreign.checkpoints.checkpoint_finder import find_checkpoints, saved_state
from midstream_engine.foreign.recorded_checkpoints import FILES, usable
from midstream_engine.foreign.run_file import RunFile, below
from midstream_engine.foreign.work_directory import WORK


@dataclasses.dataclass(frozen=True)
class StoredState:
    """Newest recorded checkpoint, what a resume continues with, and incomplete ones.

    ``problem``: why it cannot be said what is in it. ``incomplete``: path and reason of each. ``directory``: where
    checkpoints are looked for.
    """

    directory: FileName
    step: Optional[int]  # None: none is recorded
    size: int  # bytes
    model: bool
    optimizer: bool
    scheduler: bool
    random_states: int  # number of processes whose random state is in it
    data_position: str  # stored, recomputed or none
    reshards: bool
    advice: List[Text]
    problem: Text
    incomplete: List[Tuple[FileName, Text]]


@reads()
def newest(root: str, run_id: str, ranks: int) -> StoredState:
    """Describe the newest recorded checkpoint of a run.

    Raises RecordError.
    """
    paths = records.RunPaths(root, records.check_run_id(run_id))
    run = RunFile.read(paths.config)
    recorded = usable(paths)
    incomplete: List[Tuple[str, str]] = []
    directory = below(run.directory or posixpath.join(paths.dir, WORK), run.checkpoints.directory, run.out)
    try:
        found = find_checkpoints(run.checkpoints.rule, directory, run.checkpoints.pattern, ranks)
        incomplete = [(each.path, each.reason) for each in found if not each.complete][-8:]
    except (OSError, ValueError):  # its directory is missing, or has too many entries: what is recorded counts
        incomplete = []
    if not recorded:
        return StoredState(directory, None, 0, False, False, False, 0, "none", False, [], "", incomplete)
    manifest = recorded[-1]
    place = paths.checkpoint(manifest.name)
    path = records.read_json(posixpath.join(place, records.TRAIN))["state"]["path"]
    try:
        state = saved_state(run.checkpoints.rule, posixpath.join(place, FILES, path))
    except (IncompleteError, OSError, ValueError) as error:
        why = str(error)[:300]
        return StoredState(
            directory, manifest.step, manifest.size, False, False, False, 0, "none", False, [], why, incomplete
        )
    return StoredState(
        directory,
        manifest.step,
        manifest.size,
        state.model,
        state.optimizer,
        state.scheduler,
        state.random_states,
        state.data_position,
        state.reshards,
        list(state.advice),
        "",
        incomplete,
    )
