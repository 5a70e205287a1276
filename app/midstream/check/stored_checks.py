"""Checks of a run's newest checkpoint for a resume on a number of processes."""

from __future__ import annotations

from collections.abc import Iterator

from midstream.check.check_result import FAIL, PASS, WARN, Check
from midstream.counts import count
from midstream.format import size
from midstream.trainers.continuation import changes_of, processes_text, stored_for
from midstream.trainers.library_behaviour import NAMES, behaviours_of
from midstream_host.driver.checkpoints.checkpoint_finder import rule_of
from midstream_host.driver.run_file import NO, YES, RunFile
from midstream_host.trainers.stored_state import StoredState

CONTINUED = ("project_configuration", "iteration")  # by which a script continues Accelerate's automatic names
WORDS = (*NAMES, *CONTINUED)
_UNIVERSAL = "ds_to_universal"
_LEAVES_LOADER = "dataloader"  # named by torchtitan's exclude_from_loading
POSITIONS = {
    "stored": "stored with the checkpoint",
    "recomputed": "recomputed from the step: the same batches follow",
    "none": "not stored: the data may begin again",
}


def stored_checks(run: RunFile, stored: StoredState, before: int, after: int) -> Iterator[Check]:
    """Yield what a resume on ``after`` processes continues with.

    Args:
        run: The run file.
        stored: What the host reads of its newest checkpoint, which has a step and no problem, and of its programs.
        before: Number of processes that saved the checkpoint.
        after: Number of processes of the resume.
    """
    yield Check(
        "checkpoint", PASS, f"step {stored.step}, {size(stored.size)}, complete by the rule {run.checkpoints.rule}"
    )
    yield from _refused(run, stored, before, after)
    yield from _elsewhere(stored)
    yield Check("optimizer", PASS if stored.optimizer else WARN, "stored" if stored.optimizer else "not found in it")
    yield _random_state(run, stored, before, after)
    yield _data_order(run, stored, before, after)
    yield from _counted_name(stored)
    for line in changes_of(run, before, after):
        yield Check("processes", WARN, f"{processes_text(before, after)}: {line}")
    for behaviour in behaviours_of(stored.words, same_processes=before == after):
        state = PASS if behaviour.kind in ("stored", "recomputed") else WARN
        yield Check(
            "library",
            state,
            f"{behaviour.library}, {behaviour.what}: {behaviour.kind}: {behaviour.detail}",
            behaviour.hint,
        )


def _refused(run: RunFile, stored: StoredState, before: int, after: int) -> Iterator[Check]:
    """Yield what a trainer refuses to load on another number of processes."""
    if after == before:
        return
    what = processes_text(before, after)
    # Of a file of a script's own nothing shows who loads it: the run file states that.
    stated = rule_of(run.checkpoints.rule).states_processes
    if stated and not stored.reshards and not any(_UNIVERSAL in word for word in run.resume):
        hint = f"count that works: {before}"
        yield Check("processes", FAIL, f"{what}: as many as saved the checkpoint of step {stored.step} load it", hint)
    if stored.model_ranks > 1 and after % stored.model_ranks:
        hint = f"counts that work: multiples of {stored.model_ranks}"
        yield Check("processes", FAIL, f"{what}: its model is divided over {stored.model_ranks} of them", hint)
    ranks = stored.loader_ranks
    if ranks is None:
        return
    if any("exclude_from_loading" in word for word in run.resume) and any(_LEAVES_LOADER in w for w in run.resume):
        yield Check("data order", WARN, f"{what}: the loader's state is not loaded, so the data begin again")
        return
    state = f"{what}: the checkpoint has loader states of {count(ranks, 'data-parallel rank')}"
    hint = f"count that works: {before}; exclude_from_loading with dataloader in resume begins the data again"
    if ranks == before:
        yield Check("processes", FAIL, f"{state}, and its loader refuses another number", hint)
    else:
        yield Check("processes", WARN, f"{state}: the target needs as many data-parallel ranks, or it ends", hint)


def _random_state(run: RunFile, stored: StoredState, before: int, after: int) -> Check:
    if after != before and stored_for(run, before, after).random_state == NO:
        what = "of its own number of processes" if stored.random_states else "not stored"
        return Check(
            "random state",
            WARN,
            f"{what}: on {processes_text(before, after)} dropout and augmentation draw other numbers",
        )
    one_for_all = stored_for(run, before, before + 1).random_state == YES  # as of programs in jax
    enough = stored.random_states >= (1 if one_for_all else before)
    return Check(
        "random state",
        PASS if enough else WARN,
        "stored for every process"
        if enough
        else f"stored for {stored.random_states} of {count(before, 'process', 'processes')}: dropout and augmentation "
        "draw other numbers after a migration",
    )


def _data_order(run: RunFile, stored: StoredState, before: int, after: int) -> Check:
    hints = [*stored.advice, *run.stored.advice]
    stated = stored_for(run, before, after).data_position
    if stored.data_position == "none":
        return Check("data order", WARN, POSITIONS["none"], hints[0] if hints else "")
    if after != before and stated != YES:
        return Check(
            "data order",
            WARN,
            f"{stored.data_position} for {count(before, 'process', 'processes')}: on {after} other batches may follow",
        )
    return Check("data order", PASS, POSITIONS.get(stored.data_position, stored.data_position))


def _elsewhere(stored: StoredState) -> Iterator[Check]:
    """Name another place in which the trainer writes checkpoints."""
    if stored.unread:
        hint = "a newer checkpoint may be there; a folder of the host is looked at"
        yield Check("checkpoints", WARN, stored.unread, hint)
    elif stored.elsewhere:
        yield Check(
            "checkpoints", PASS, f"looked for in {stored.directory} and {stored.elsewhere} (temporary_base_path)"
        )


def _counted_name(stored: StoredState) -> Iterator[Check]:
    """Check that names which count the checkpoints go on after a resume."""
    if stored.counted_name is None:
        return
    if all(name in stored.words for name in CONTINUED):
        yield Check(
            "names", PASS, f"checkpoint_{stored.counted_name} is counted, and a program sets {'.'.join(CONTINUED)}"
        )
        return
    yield Check(
        "names",
        WARN,
        f"automatic names begin at 0 after load_state: the trainer ends when it saves checkpoint_{stored.counted_name}"
        ", which is there already",
        "after load_state of checkpoint_N: accelerator.project_configuration.iteration = N + 1",
    )
