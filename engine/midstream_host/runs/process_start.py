"""Start of a process on this host that outlives the login that starts it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import signal
import subprocess
from typing import List, Mapping, Optional, Sequence

from midstream_core import records
from midstream_core.json_types import JsonObject

SETUP_FAILED = 78  # sysexits' EX_CONFIG


def with_setup(argv: Sequence[str], setup: Sequence[str]) -> List[str]:
    """Return ``argv`` behind a shell that evaluates ``setup``.

    A line that fails is reported.
    """
    if not setup:
        return list(argv)
    lines = [
        "eval {0} || {{ echo setup: {0} failed >&2; exit {1}; }}".format(shlex.quote(line), SETUP_FAILED)
        for line in setup
    ]
    return ["/bin/sh", "-c", "\n".join([*lines, 'exec "$@"']), "sh", *argv]


def detached(argv: Sequence[str]) -> List[str]:
    """Return ``argv`` so that it outlives the login that starts it.

    A new session is enough, unless systemd-logind ends a user's processes at logout (KillUserProcesses): then it runs
    in a new scope, where systemd permits one.
    """
    if not kills_left_behind():
        return list(argv)
    flags = [] if os.geteuid() == 0 else ["--user"]
    scope = ["systemd-run", *flags, "--scope", "--quiet", "--collect", "--"]
    return [*scope, *argv] if _succeeds([*scope, "true"]) else list(argv)


def kills_left_behind() -> bool:
    """Return whether systemd-logind ends a user's processes at logout.

    The setting is KillUserProcesses.
    """
    service = "org.freedesktop.login1"
    argv = ["busctl", "get-property", service, "/org/freedesktop/login1", service + ".Manager", "KillUserProcesses"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              timeout=10, check=False)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.split() == [b"b", b"true"]


def _succeeds(argv: Sequence[str]) -> bool:
    try:
        return subprocess.run(list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, timeout=20, check=False).returncode == 0  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False


def spawn(
    argv: Sequence[str],
    env: Mapping[str, str],
    directory: str,
    log: str,
    launched: str,
    note: Optional[JsonObject] = None,
) -> records.ProcessIdentity:
    """Start ``argv`` as a grandchild in a session of its own and return its identity.

    The process writes ``launched`` itself before it becomes ``argv``, so that none runs unrecorded.

    Args:
        argv: The program and its arguments.
        env: Its environment.
        directory: Its working directory.
        log: File that its output is appended to.
        launched: File for its identity.
        note: Further keys for ``launched``.

    Raises:
        OSError: It cannot run.
    """
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    reading, writing = os.pipe()  # closed by the exec
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                identity = dataclasses.asdict(records.this_process())
                records.write_json(launched, dict(identity, argv=list(argv), **(note or {})))
                os.write(writing, json.dumps(identity).encode() + b"\n")
                _become(argv, env, directory, output, writing)
        except BaseException as error:  # noqa: BLE001  the parent raises it
            os.write(writing, json.dumps({"error": str(error)}).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(writing)
    os.close(output)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as pipe:
        lines = [json.loads(line) for line in pipe]
    errors = [line["error"] for line in lines if "error" in line]
    if errors or not lines:
        raise OSError("{} cannot be started: {}".format(argv[0], errors[0] if errors else "its process exited"))
    return records.ProcessIdentity.from_json(lines[0], "identity")


def _become(argv: Sequence[str], env: Mapping[str, str], directory: str, output: int, keep: int) -> None:
    """Reset signals and descriptors, then exec."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != keep:
            with contextlib.suppress(OSError):  # the listing's own descriptor
                os.close(int(name))
    os.chdir(directory)
    os.execvpe(argv[0], list(argv), dict(env))
