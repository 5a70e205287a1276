"""The operating system of simulated machines, in place of the real one.

`install` replaces pids, signals, locks, the environment and standard streams in the standard library;
`install_identities` replaces what `midstream_core` reads from ``/proc``.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from simulation.machines import SimulatedProcess, present
from simulation.scheduler import BEGIN, SCHEDULER

_real_flock, _real_read, _real_select, _real_close = fcntl.flock, os.read, select.select, os.close
READING = ("r", "rb", "rt")
_real_open, _real_open_file, _real_mkdir = os.open, open, os.mkdir


def _required() -> SimulatedProcess:
    process = present()
    assert process is not None, "no simulated process runs"
    return process


def _read(descriptor: int, size: int) -> bytes:
    if descriptor or (process := present()) is None:
        return _real_read(descriptor, size)
    if process.stdin is None:
        return b""
    process.stdin.wait()
    return process.stdin.take(size)


def _select(reading: Any, writing: Any, failing: Any, timeout: float | None = None) -> Any:
    process = present()
    if process is None or list(reading) != [0]:
        return _real_select(reading, writing, failing, timeout)
    ready = process.stdin is None or process.stdin.wait(timeout)
    return ([0] if ready else []), [], []


def _flock(file: Any, operation: int) -> None:
    descriptor = file if isinstance(file, int) else file.fileno()
    process = present()
    if process is None:
        return _real_flock(descriptor, operation)
    return process.lock(descriptor, operation)


def _close(descriptor: int) -> None:
    process = present()
    if process is not None:
        process.unlock_closed(descriptor)
    _real_close(descriptor)


def _kill(pid: int, number: int) -> None:
    target = _required().machine.processes.get(pid)
    if target is None:
        raise ProcessLookupError(3, "No such process")
    if number:
        target.deliver(number)


def _exit(code: int) -> None:
    _required().end(code)


def _signal(number: int, handler: Any) -> Any:
    process = present()
    if process is None:
        return signal.SIG_DFL
    before = process.handlers.get(number, signal.SIG_DFL)
    process.handlers[number] = handler
    return before


class _NoProgram:
    """``subprocess.Popen`` of a machine without programs."""

    def __init__(self, argv: Any, *_: Any, **__: Any) -> None:
        raise FileNotFoundError(2, "No such file or directory", argv if isinstance(argv, str) else argv[0])


def _check_space(path: Any) -> None:
    """Raise the error of a full disk where a process makes a file on one."""
    process = present()
    if process is None or not process.machine.full or isinstance(path, int):
        return
    directory = process.machine.directory  # the operator's state directories are beside it
    states = [os.path.join(os.path.dirname(directory), "state")] if process.machine.name == "operator" else []
    if os.fspath(path).startswith((directory, *states)):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def _open(path: Any, flags: int, *rest: Any, **given: Any) -> int:
    if flags & os.O_CREAT:
        _check_space(path)
    return _real_open(path, flags, *rest, **given)


def _open_file(file: Any, mode: str = "r", *rest: Any, **given: Any) -> Any:
    if mode not in READING and set("wax") & set(mode):
        _check_space(file)
    return _real_open_file(file, mode, *rest, **given)


def _mkdir(path: Any, *rest: Any, **given: Any) -> None:
    _check_space(path)
    _real_mkdir(path, *rest, **given)


def _node_name() -> str:
    process = present()
    return process.machine.name if process is not None else "simulation"


_real_uname = os.uname


def _uname() -> Any:
    real = _real_uname()
    return os.uname_result((real.sysname, _node_name(), real.release, real.version, real.machine))


def install() -> None:
    """Replace what programs read of the operating system. Call it before anything of midstream is imported."""
    fcntl.flock, os.read, os.close, select.select = _flock, _read, _close, _select  # type: ignore[assignment]
    os.kill, os._exit, os.uname = _kill, _exit, _uname  # type: ignore[assignment]
    os.open, os.mkdir, builtins.open, io.open = _open, _mkdir, _open_file, _open_file  # type: ignore[assignment]
    signal.signal = _signal  # type: ignore[assignment]
    socket.gethostname = _node_name
    subprocess.Popen = _NoProgram  # type: ignore[assignment, misc]
    os.getpid = lambda: process.pid if (process := present()) is not None else 1
    own = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere"}
    standard = sys.stdout, sys.stderr, sys.argv

    def leave() -> None:
        os.environ._data = own  # type: ignore[attr-defined]
        sys.stdout, sys.stderr, sys.argv = standard

    SCHEDULER.leave = leave
    leave()
    os.environ.encodekey = os.environ.decodekey = os.environ.encodevalue = os.environ.decodevalue = _same  # type: ignore[attr-defined]


def _same(value: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"str expected, not {type(value).__name__}")
    return value


def install_identities() -> None:
    """Replace the identities of processes that `midstream_core` reads from ``/proc``."""
    from midstream_core.records import process_identity

    def start_ticks(pid: int) -> int | None:
        process = _required().machine.processes.get(pid)
        return None if process is None else process.start_ticks

    replaced: dict[str, Callable[..., Any]] = {
        "_start_ticks": start_ticks,
        "boot_id": lambda: _required().machine.boot_id,
        "machine": lambda: f"machine-{_required().machine.name}",
        "_namespace": lambda: "pid:[1]",
        "_boot_time": lambda: BEGIN + _required().machine.booted + _required().machine.ahead,
    }
    for name, function in replaced.items():
        replace_everywhere(getattr(process_identity, name), function)


def replace_everywhere(old: Any, new: Any) -> None:
    """Replace a function in every module that has imported it."""
    for module in list(sys.modules.values()):
        if not getattr(module, "__name__", "").startswith(("midstream", "simulation")):
            continue
        for name, value in list(vars(module).items()):
            if value is old:
                setattr(module, name, new)
