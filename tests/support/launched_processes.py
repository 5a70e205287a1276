"""End the processes that launches below a directory have started."""

from __future__ import annotations

import fnmatch
import json
import os
import signal
from contextlib import suppress
from pathlib import Path

from midstream_core import records
from support.checkpoints.trees import paths_below


def kill_launched(directory: Path) -> None:
    """Kill each process that a launch record below ``directory`` names and that still runs."""
    for path in paths_below(directory):
        if not fnmatch.fnmatch(str(path), "*/runs/*/attempts/*/launch*.json"):
            continue
        with suppress(FileNotFoundError, ProcessLookupError):  # it may end by itself before the kill
            identity = records.ProcessIdentity.from_json(json.loads(path.read_text()))
            if records.is_running(identity):
                os.kill(identity.pid, signal.SIGKILL)
