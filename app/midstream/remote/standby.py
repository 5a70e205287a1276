"""An attempt that stands by on this host: what it needs to be started, and how it takes an order."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, Optional

from midstream.remote import runs
from midstream_engine import records

POLL = 0.02  # seconds between two looks


def put_config(root: str, run_id: str, text: str) -> None:
    """Make ``text`` the run's config. Refused where an attempt of the run lives: it may be reading its own."""
    paths = records.RunPaths(root, records.check_run_id(run_id))
    os.makedirs(paths.attempts, exist_ok=True)
    with records.locked(paths.lock):
        living = runs.living_attempt(root, run_id)
        if living:
            raise runs.Refused("attempt {} of {} runs here already".format(living, run_id))
        records.write_bytes(paths.config, text.encode())


def clock() -> float:
    """This host's time: UTC seconds."""
    return time.time()


def order(root: str, run_id: str, attempt: int) -> Optional[Dict[str, Any]]:
    """The newest order of an attempt; None where it has none."""
    return records.read_json_or_none(records.RunPaths(root, run_id).attempt(attempt).order)


def heard(root: str, run_id: str, attempt: int, serial: int, patience: float) -> Dict[str, Any]:
    """``{"heard", "status", "alive"}`` once the attempt has carried out or refused order ``serial`` or has ended, and
    after ``patience`` seconds at the latest."""
    deadline = time.monotonic() + patience
    while True:
        found = runs.status(root, run_id, attempt)
        status = found["status"]
        done = not found["alive"] or (
            status is not None
            and (status["state"] in records.ENDED or max(status["order"], status["refused"]) >= serial)
        )
        if done or time.monotonic() >= deadline:
            return dict(found, heard=done)
        time.sleep(POLL)
