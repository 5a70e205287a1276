"""Reader of the run's fence, once for each boundary of the training loop."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import NoReturn

from midstream_core import records
from midstream_core.attempt.errors import FencedError
from midstream_core.attempt.save_fence import FenceUnreadableError, fence_removed, read_fence
from midstream_core.attempt.status_file import StatusFile

log = logging.getLogger(__name__)


class FenceReader:
    """Reads the fence on this host.

    Attributes:
        unreadable: Why it cannot be read; empty if it can.
    """

    def __init__(self, paths: records.RunPaths, status: StatusFile) -> None:
        self.unreadable = ""
        self._paths = paths
        self._status = status
        self._version: tuple[int, int] | None = None  # modification time (ns) and inode of the fence last read
        self._epoch, self._start = 0, 0  # of the fence, as last read

    def epoch(self) -> int:
        """Return the fence's epoch, by one stat, and a read after a change or an error."""
        path, reason = self._paths.fence, ""
        try:
            status = os.stat(path)
            if (status.st_mtime_ns, status.st_ino) != self._version:
                self._version = None
                fence = read_fence(self._paths)
                self._version = (status.st_mtime_ns, status.st_ino)
                self._epoch, self._start = fence.order if fence is not None else (0, 0)
        except FileNotFoundError:
            # An attempt that has read a fence cannot commit without it; a run may also have none from the start.
            reason = str(fence_removed(self._paths)) if self._epoch else ""
        except (FenceUnreadableError, OSError) as error:
            reason = str(error)
        if reason != self.unreadable:
            self._report_unreadable(reason)
        return self._epoch

    def superseded(self, epoch: int, start: int) -> bool:
        """Return whether the fence last read has a newer start of ``epoch``."""
        return self._epoch == epoch and self._start > start

    def _report_unreadable(self, reason: str) -> None:
        """Report an unreadable fence in the log and the status, once.

        The status is cleared when the fence is readable.
        """
        before, self.unreadable = self.unreadable, reason
        if reason:
            log.error("%s", reason)
            self._status.update(message=reason)
        else:
            log.info("the fence can be read again: ownership %d", self._epoch)
            if self._status.value.message == before:
                self._status.update(message="")

    def refuse(self, epoch: int, step: int, superseded: bool = False) -> NoReturn:
        """Raise FencedError at ``step``: another attempt or a newer start has the run.

        ``epoch``: the highest that any process has read. ``superseded``: a process has read a newer start of it.
        """
        if superseded:
            raise FencedError(
                f"the run was started again (start {self._start} of ownership {epoch}): this start ends at step {step}"
            )
        owner = f"ownership {epoch}"
        fence = None
        with contextlib.suppress(FenceUnreadableError):
            fence = read_fence(self._paths)
        if fence is not None and fence.epoch == epoch:  # this host's fence may be older than another process's
            owner = f"{fence.owner} (ownership {epoch}, sealed at step {fence.sealed_step})"
        raise FencedError(f"the run belongs to {owner}: this attempt ends at step {step}")
