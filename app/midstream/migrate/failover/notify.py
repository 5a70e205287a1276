"""Tell a person who is not looking: the fleet file's ``on_event:`` command gets one JSON object on its stdin."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from collections.abc import Mapping
from typing import Any

from midstream.printable import printable_values

# What is told. Programs match on these.
FINISHED, FAILED, NEEDS_YOU, LOST = "finished", "failed", "needs you", "lost"
PATIENCE = 60.0  # seconds

_log = logging.getLogger(__name__)


def notify(command: str | None, event: Mapping[str, Any]) -> bool:
    """Run ``command`` through the shell with ``event`` as a JSON line on stdin, its texts `printable`, and its ``kind``
    in ``$MIDSTREAM_EVENT``. Nothing of the event is part of the command line. False, and a line in the log, where it
    failed: a notification that cannot be made stops nothing."""
    if not command:
        return False
    environment = {**os.environ, "MIDSTREAM_EVENT": str(event.get("kind", ""))}
    try:
        done = subprocess.run(
            command, shell=True, input=json.dumps(printable_values(event)) + "\n", text=True, env=environment,
            timeout=PATIENCE, capture_output=True,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        _log.error("on_event: %s", error)
        return False
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        _log.error("on_event: %s: %s", command, said[0])
    return done.returncode == 0
