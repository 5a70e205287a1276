"""Installers of an environment on this host.

One installer at a time runs for each environment, and its output is sent as events.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Callable, Generator, List, Mapping, Sequence
from urllib.parse import unquote

NEUTRAL = "/"  # working directory of installers and interpreters, which read modules and settings there
HIDDEN = "***"
_CREDENTIALS = re.compile(r"(://)[^/\s@]+(?=@)|(https?://\S*?/t/)[^/\s]+")  # of a URL; a token of a conda channel
_FOREIGN = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV")

PROBE_BYTES = 1 << 20  # that do not fit on a disk that is full


class BuildError(Exception):
    """A command failed; the message is one line."""


def emit(event: str, **fields: object) -> None:
    """Send an event of a program to the app."""
    sys.stdout.buffer.write(json.dumps(dict(fields, event=event)).encode() + b"\n")
    sys.stdout.buffer.flush()


@contextlib.contextmanager
def locked(root: str, name: str) -> Generator[int, None, None]:
    """Hold the lock of the environment ``<root>/envs/<name>``.

    Yields its descriptor, which installers inherit.
    """
    os.makedirs(posixpath.join(root, "envs"), exist_ok=True)
    descriptor = os.open(posixpath.join(root, "envs", "." + name + ".lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            directory = posixpath.join(root, "envs", name)
            emit("line", text="another launch builds {}: waiting for it".format(directory))
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def environment_with(env: Mapping[str, str]) -> "dict[str, str]":
    """Return the environment of installers: this one with ``env``.

    Variables of another interpreter are left out.
    """
    return {**{key: value for key, value in os.environ.items() if key not in _FOREIGN}, **env}


def remove(directory: str) -> None:
    """Remove a directory that may be missing."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(directory)


def hiding(secrets: Sequence[str]) -> Callable[[str], str]:
    """Return a function that removes secrets and credentials from a line."""
    values = sorted({form for secret in secrets for form in (secret, unquote(secret)) if form}, key=len, reverse=True)

    def hide(line: str) -> str:
        for value in values:
            line = line.replace(value, HIDDEN)
        return _CREDENTIALS.sub(lambda match: (match[1] or match[2]) + HIDDEN, line)

    return hide


def run(argv: Sequence[str], env: Mapping[str, str], lock: int, hide: Callable[[str], str] = hiding(())) -> None:
    """Run a command to its end and send each line of its output.

    Raises BuildError where it fails.

    Args:
        argv: The command.
        env: Its environment.
        lock: Descriptor that it inherits.
        hide: Removes secrets from a line.
    """
    emit("line", text=hide(" ".join(argv)))
    last: List[str] = []
    try:
        with subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(env),
            pass_fds=(lock,),
            cwd=NEUTRAL,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                text = hide(line.decode(errors="replace").rstrip())
                if text:
                    last = [*last[-4:], text]
                    emit("line", text=text)
    except OSError as error:
        raise BuildError("{}: {}".format(argv[0], error.strerror)) from error
    if process.returncode:
        words = " / ".join(last) or "exit code {}".format(process.returncode)
        raise BuildError(hide("{} failed: {}".format(" ".join(argv[:4]), words)))


def full_disk(root: str) -> str:
    """Return which disk of an installation is full; empty if none is.

    A file is written on the disk of the root and on that of temporary files: quotas and exhausted inodes count too.
    """
    for directory in (root, tempfile.gettempdir()):
        try:
            with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
                file.write(bytes(PROBE_BYTES))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                free = shutil.disk_usage(directory).free / 1e6
                return "{} at {}: {:.0f} MB free".format(error.strerror, directory, free)
    return ""
