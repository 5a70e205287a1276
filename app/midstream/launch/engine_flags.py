"""Engine flags after ``--``, and those that name the run's directory.

The app looks for a run in the directory of its id under its host's root, so that the engine must write there.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from midstream.errors import UsageError
from midstream_core import records

ID, ROOT = "trainer.id", "trainer.root"
NOT_GIVEN = ("", "null", "~")  # values that are none for the engine


def engine_flags(words: Sequence[str]) -> dict[str, str]:
    """Parse the engine flags after ``--``: ``--name VALUE`` or ``--name=VALUE``.

    The last of a name counts.
    """
    flags: dict[str, str] = {}
    pending = iter(words)
    for word in pending:
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        following = None if equals else next(pending, None)
        if equals or following is not None:
            flags[name] = value if following is None else following
    return flags


def named_run(run_id: str | None, words: Sequence[str]) -> str | None:
    """Return the run id of ``--run-id`` or of the engine flag ``--trainer.id``.

    None without both.

    Args:
        run_id: Value of ``--run-id``.
        words: Engine flags.

    Raises:
        UsageError: It is no run id, the two differ, or a flag names another root directory.
    """
    flags = engine_flags(words)
    given = flags.get(ID, "")
    given = "" if given in NOT_GIVEN else given
    if run_id and given and given != run_id:
        raise UsageError(f"--run-id {run_id} and --{ID} {given} name different runs", f"leave --{ID} out")
    if ROOT in flags:
        raise UsageError(
            f"--{ROOT} {flags[ROOT]}: midstream would not find the run there",
            "leave it out: a host's runs are under its root: in the fleet file",
        )
    try:
        return records.check_run_id(run_id or given) if run_id or given else None
    except records.RecordError as error:
        raise UsageError(str(error)) from None


def checked_flags(run_id: str, words: Sequence[str]) -> dict[str, str]:
    """Parse the engine flags for a run that moves.

    Raises:
        UsageError: They name another run, or a root.
    """
    given = named_run(None, words)
    if given not in (None, run_id):
        raise UsageError(f"--{ID} {given}: run {run_id} keeps its id", f"leave --{ID} out")
    return engine_flags(words)


def without_id(words: Sequence[str]) -> tuple[str, ...]:
    """Return the engine flags without ``--trainer.id``, which the launcher sets."""
    kept: list[str] = []
    pending = iter(words)
    for word in pending:
        name, equals, _ = word.partition("=")
        value = [] if equals or not word.startswith("--") else list(itertools.islice(pending, 1))
        if name != f"--{ID}":
            kept += [word, *value]
    return tuple(kept)
