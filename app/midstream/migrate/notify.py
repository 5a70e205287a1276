"""Notifications of the user: the ``on_event:`` command and ``notify:`` webhooks.

The fleet file names both.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

from midstream.fleet.fleet import Fleet
from midstream.printable import printable_values
from midstream_core.json_types import JsonObject

# Kinds of events. Programs match on these.
FINISHED, FAILED, NEEDS_YOU, LOST, RESTARTED = "finished", "failed", "needs you", "lost", "restarted"
COMMAND_TIMEOUT = 60.0  # seconds

_log = logging.getLogger(__name__)


def notify_all(fleet: Fleet, event: JsonObject) -> None:
    """Send the event to the ``on_event:`` command and to all ``notify:`` receivers.

    Command and receivers get it concurrently.
    """
    with ThreadPoolExecutor(max_workers=1 + len(fleet.notify)) as pool:
        pool.submit(notify, fleet.on_event, event)
        for receiver in fleet.notify:
            from midstream.migrate import webhook  # with TLS, which takes 2 MB

            pool.submit(webhook.send, receiver, event)


def notify(command: str | None, event: JsonObject) -> bool:
    """Run ``command`` with ``event`` on its stdin; return whether it succeeded.

    ``command`` runs through the shell; the event is a JSON line.

    Texts of the event are `printable`; its ``kind`` is in ``$MIDSTREAM_EVENT``. No part of the event is in the command
    line. A failure is logged and raises nothing, because a notification must not stop a migration.
    """
    if not command:
        return False
    environment = {**os.environ, "MIDSTREAM_EVENT": str(event.get("kind", ""))}
    try:
        done = subprocess.run(
            command, shell=True, input=json.dumps(printable_values(event)) + "\n", text=True, env=environment,
            timeout=COMMAND_TIMEOUT, capture_output=True,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        _log.error("on_event: %s", error)
        return False
    if done.returncode:
        lines = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        _log.error("on_event: %s: %s", command, lines[0])
    return done.returncode == 0
