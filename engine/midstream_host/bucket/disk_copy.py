"""Copy between a bucket and a disk: one program reads and writes.

The machine of the disk has the bucket's client. A stream between two programs would pass every byte through two more
pipes. The app requests items as it does from a sender, and the reports are those of a receiver.
"""

from __future__ import annotations

import json
from typing import Callable, Dict

from midstream_core.json_types import JsonValue
from midstream_core.object_store.errors import StoreError
from midstream_host.bucket.access_problem import report_problem
from midstream_host.bucket.writes import CopyThreads
from midstream_host.copy.frames import ProblemError
from midstream_host.copy.progress_reports import ProgressReports
from midstream_host.copy.requested_items import RequestedItems
from midstream_host.copy.sender import Pace
from midstream_host.copy.stdin_lines import StdinLines
from midstream_host.copy_items import CopyItem
from midstream_host.object_files import emit

POLL_INTERVAL = 0.1  # seconds between two looks for an error of another thread


class DiskCopy:
    """Base of the copies: items one after another, in the thread that reads stdin."""

    def __init__(self, kind: str, key: str) -> None:
        self.kind = kind
        self._requests = RequestedItems(key)
        self.reports = ProgressReports()
        self.work = CopyThreads()
        self.pace = Pace()

    def take(self, item: CopyItem) -> None:
        """Begin to copy an item. Raises ProblemError and the errors of disk and bucket."""
        raise NotImplementedError

    def run(self) -> None:
        """Copy what the app requests, to its last line. Raises as `take`."""
        lines = StdinLines()
        try:
            while True:
                line = lines.get(POLL_INTERVAL)
                self.work.raise_error()
                if line is None:
                    continue
                if "rate" in line:
                    self.pace.rate = line["rate"]
                for sent in line.get("items", ()):
                    item = self._requests.checked(self.kind, json.dumps(sent).encode())
                    self.take(item)
                    self.work.raise_error()
                if line.get("end"):
                    self.work.finish()
                    return
        finally:
            self.work.close()
            self.reports.close()


def run(begin: Callable[[], DiskCopy], on_disk_error: Callable[[OSError], None]) -> int:
    """Run a copy to its last line, ``done`` or ``problem``; return the exit status."""
    try:
        begin().run()
    except ProblemError as error:
        fields: Dict[str, JsonValue] = error.fields
        emit("problem", **fields)
        return 1
    except (StoreError, ValueError) as error:
        report_problem(error, emit)
        return 1
    except OSError as error:
        on_disk_error(error)
        return 1
    emit("done")
    return 0
