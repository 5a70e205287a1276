"""Secrets of a run's attempts on this host: files that only their owner can read."""

from __future__ import annotations

import json
import os
import posixpath
import shutil
from typing import Mapping

from midstream_core import records
from midstream_host.declarations import repeatable
from midstream_host.runs import run_state

SECRETS = ".secrets"  # directory of the run, mode 0700


def secrets_file(root: str, run_id: str, number: int, process: str = "") -> str:
    """Return the path of the secrets of a process of an attempt.

    Without ``process``, return the path of the secrets of a job.
    """
    name = "{:03d}{}.json".format(number, "-" + process if process else "")
    return posixpath.join(records.RunPaths(root, run_id).dir, SECRETS, name)


def put_secrets(path: str, secrets: Mapping[str, str]) -> None:
    """Write secrets with mode 0600.

    Remove those of earlier attempts, which have ended.
    """
    directory, name = posixpath.split(path)
    if os.path.islink(directory):
        os.unlink(directory)
    attempt = name.partition(".")[0].partition("-")[0]
    for old_name in os.listdir(directory) if os.path.isdir(directory) else ():
        if old_name == name or old_name.partition(".")[0].partition("-")[0] != attempt:
            os.unlink(posixpath.join(directory, old_name))
    if secrets:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        os.chmod(directory, 0o700)  # regardless of the umask
        records.write_bytes(path, json.dumps(dict(secrets)).encode(), mode=0o600)


@repeatable("what is removed stays removed")
def remove_secrets(root: str, run_id: str) -> None:
    """Remove the secrets of a run unless an attempt, which may be requeued, runs here."""
    paths = records.RunPaths(root, records.check_run_id(run_id))
    with records.locked(paths.lock):
        if not run_state.running_attempt(root, run_id):
            shutil.rmtree(posixpath.join(paths.dir, SECRETS), ignore_errors=True)
