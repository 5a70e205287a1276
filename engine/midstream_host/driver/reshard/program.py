"""Write a checkpoint of DeepSpeed for another number of processes.

Lines: ``progress`` with ``done`` and ``total`` bytes, at the end ``done`` with the result, or ``problem`` with
``message``.
Standard library only; Python 3.8.
"""

from __future__ import annotations

import os
import posixpath
import time
from typing import List

from midstream_core import records
from midstream_host.declarations import program
from midstream_host.driver.reshard.errors import ReshardError
from midstream_host.driver.reshard.reshard import LATEST, Progress, Resharded, reshard, tag_of, work_of
from midstream_host.driver.reshard.stored_ranks import stored_ranks
from midstream_host.object_files import emit, end_with_operator

_INTERVAL = 1.0  # seconds between two lines of progress


@program
def divide(directory: str, output: str, processes: int) -> int:
    """Divide the checkpoint in ``directory`` over ``processes``, into ``output``.

    A program. ``directory``: that of ``latest``, or the checkpoint's own. ``output``: a new directory. A second call
    after the first was killed continues.
    """
    end_with_operator()
    try:
        result = divide_into(directory, output, processes, _Lines().progress)
    except (ReshardError, OSError, records.RecordError) as error:
        emit("problem", message=str(error)[:1000], kind="checkpoint")
        return 1
    emit("done", step=result.step, ranks_before=result.ranks_before, ranks=result.ranks, files=result.files,
         bytes=result.size, continued=result.continued, digests=sorted(result.digests.items()))  # fmt: skip
    return 0


def divide_into(directory: str, output: str, processes: int, progress: Progress) -> Resharded:
    """Divide a checkpoint; see `divide`. Raises ReshardError and OSError."""
    source = tag_of(directory)
    saved = stored_ranks(source)
    if processes < 1 or processes % saved.model:
        raise ReshardError(
            "{} processes: the model is divided over {} of them, so the number has to be a multiple".format(
                processes, saved.model
            )
        )
    tag = posixpath.join(output, posixpath.basename(source))
    _check_output(source, output, tag)
    os.makedirs(output, exist_ok=True)
    try:
        return reshard(source, tag, processes // saved.model, progress, _name_newest)
    except ReshardError:
        _remove_if_empty(output)
        raise


def _name_newest(tag: str) -> None:
    """Name a checkpoint that is complete as the newest, before it gets its name."""
    records.write_bytes(posixpath.join(posixpath.dirname(tag), LATEST), posixpath.basename(tag).encode())


def _check_output(source: str, output: str, tag: str) -> None:
    """Raise ReshardError unless ``output`` is new.

    What an ended conversion of this checkpoint has left may be there.
    """
    try:
        names: List[str] = os.listdir(output)
    except FileNotFoundError:
        return
    if os.path.realpath(output) == os.path.realpath(posixpath.dirname(source)):
        raise ReshardError("{} is the directory of the checkpoint itself (hint: a new directory)".format(output))
    own = {posixpath.basename(work_of(tag)), LATEST}
    if LATEST in names and posixpath.basename(work_of(tag)) not in names:
        own.clear()
    if set(names) - own:
        raise ReshardError("{} is not empty: {} is there (hint: a new directory)".format(
            output, ascii(sorted(set(names) - own)[0])[:80]))  # fmt: skip


def _remove_if_empty(output: str) -> None:
    if not os.listdir(output):
        os.rmdir(output)


class _Lines:
    """Prints progress, a line each second."""

    def __init__(self) -> None:
        self._printed = time.monotonic()

    def progress(self, done: int, total: int) -> None:
        """Print a line. Called under a lock."""
        if time.monotonic() - self._printed >= _INTERVAL:
            self._printed = time.monotonic()
            emit("progress", done=done, total=total)
