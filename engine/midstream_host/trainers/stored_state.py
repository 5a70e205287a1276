"""Contents of the checkpoints of another trainer's run, from their files.

Standard library only; runs on the host.
"""

from __future__ import annotations

import dataclasses
import posixpath
from typing import List, Optional, Sequence, Tuple

from midstream_core import records
from midstream_core.json_types import str_of
from midstream_host.declarations import reads
from midstream_host.driver.checkpoint_places import other_place
from midstream_host.driver.checkpoint_steps import why_left_out
from midstream_host.driver.checkpoints.checkpoint import IncompleteError
from midstream_host.driver.checkpoints.checkpoint_finder import find_checkpoints, rule_of, saved_state
from midstream_host.driver.recorded_checkpoints import FILES, usable
from midstream_host.driver.run_file import RunFile, below
from midstream_host.driver.work_directory import WORK
from midstream_host.shapes import FileName, Text
from midstream_host.trainers.programs import names_in


@dataclasses.dataclass(frozen=True)
class StoredState:
    """Newest recorded checkpoint, what a resume continues with, and incomplete ones.

    ``problem``: why it cannot be said what is in it. ``incomplete``: path and reason of each. ``directory``: where
    checkpoints are looked for. ``loader_ranks`` and ``counted_name``: see `SavedState`. ``words``: those of the request
    that the run's programs, settings or commands have. ``elsewhere``: another place that is looked at, by the settings;
    ``unread``: why one is not.
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
    loader_ranks: Optional[int] = None
    counted_name: Optional[int] = None
    words: List[Text] = dataclasses.field(default_factory=lambda: [])
    elsewhere: Text = ""
    unread: Text = ""
    model_ranks: int = 1


@reads()
def newest(root: str, run_id: str, ranks: Optional[int], words: Sequence[str] = ()) -> StoredState:
    """Describe the newest recorded checkpoint of a run.

    ``ranks``: processes of the run, by which incomplete checkpoints are found; None: these are not looked for.
    ``words``: names that are looked for in what the run executes.

    Raises RecordError.
    """
    paths = records.RunPaths(root, records.check_run_id(run_id))
    run = RunFile.read(paths.config)
    work = run.directory or posixpath.join(paths.dir, WORK)
    directory = below(work, run.checkpoints.directory, run.out)
    other = other_place(run, run.command, work, {"RUN_ID": run_id})
    stored = StoredState(
        directory, None, 0, False, False, False, 0, "none", False, [], "",
        [] if ranks is None else _incomplete(run, directory, ranks),
        words=names_in(work, [*run.command, *run.resume], words),
        elsewhere=other.base,
        unread=other.problem,
    )  # fmt: skip
    usable_ones = usable(paths)
    if not usable_ones:
        return stored
    manifest = usable_ones[-1]
    stored = dataclasses.replace(stored, step=manifest.step, size=manifest.size)
    place = paths.checkpoint(manifest.name)
    path = str_of(records.checkpoint_state(place)["path"])
    try:
        state = saved_state(run.checkpoints.rule, posixpath.join(place, FILES, path))
    except (IncompleteError, OSError, ValueError) as error:
        return dataclasses.replace(stored, problem=str(error)[:300])
    return dataclasses.replace(
        stored,
        model=state.model,
        optimizer=state.optimizer,
        scheduler=state.scheduler,
        random_states=state.random_states,
        data_position=state.data_position,
        reshards=state.reshards,
        model_ranks=state.model_ranks,
        advice=list(state.advice),
        loader_ranks=state.loader_ranks,
        counted_name=state.counted_name,
    )


def _incomplete(run: RunFile, directory: str, ranks: int) -> List[Tuple[str, str]]:
    """Return path and reason of the last checkpoints that are not complete."""
    try:
        checkpoints = find_checkpoints(run.checkpoints.rule, directory, run.checkpoints.pattern, ranks)
    except (OSError, ValueError):  # its directory is missing, or has too many entries: what is recorded counts
        return []
    hint = rule_of(run.checkpoints.rule).name_hint
    left_out = [(checkpoint.path, why_left_out(hint, checkpoint)) for checkpoint in checkpoints]
    return [pair for pair in left_out if pair[1]][-8:]
