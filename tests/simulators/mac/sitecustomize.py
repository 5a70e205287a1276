"""A Mac, as far as a process can be made to see one: put this directory into PYTHONPATH.

`sys.platform` is darwin, /proc and /sys do not exist, and the standard library lacks what only Linux has. Programs on
hosts that are reached over SSH have another environment and stay as they are. $MIDSTREAM_SIMULATED_MAC names a file
that gets a line for each process that was changed, and one for each use of what is hidden.
"""

import builtins
import fcntl
import io
import os
import platform
import select
import signal
import socket
import sys
import time
import types

HIDDEN = ("/proc", "/sys")
ONLY_LINUX = {
    os: (
        "splice", "sched_getaffinity", "sched_setaffinity", "posix_fadvise", "posix_fallocate", "copy_file_range",
        "pidfd_open", "memfd_create", "eventfd", "setns", "unshare", "getrandom", "O_TMPFILE", "O_PATH", "O_DIRECT",
        "getxattr", "setxattr", "listxattr", "SPLICE_F_MOVE", "login_tty",
    ),
    fcntl: ("F_SETPIPE_SZ", "F_GETPIPE_SZ", "F_ADD_SEALS", "F_NOTIFY", "F_OFD_SETLK"),
    select: ("epoll",),
    signal: ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo", "SIGRTMIN", "SIGPWR"),
    socket: ("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_QUICKACK", "SO_PEERCRED", "AF_NETLINK", "SO_BINDTODEVICE"),
    time: ("CLOCK_BOOTTIME", "pthread_getcpuclockid"),
}  # fmt: skip


def _note(line: str) -> None:
    with _open(os.environ["MIDSTREAM_SIMULATED_MAC"], "a") as file:
        file.write(line + "\n")


_open = io.open


def _is_hidden(path: object) -> bool:
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    name = os.fsdecode(path)
    return any(name == each or name.startswith(f"{each}/") for each in HIDDEN)


def _hiding(function):
    def hidden(path=".", *arguments, **named):
        if _is_hidden(path):
            _note(f"used {os.fsdecode(path)}")
            raise FileNotFoundError(2, "No such file or directory", os.fsdecode(path))
        return function(path, *arguments, **named)

    return hidden


if os.environ.get("MIDSTREAM_SIMULATED_MAC"):
    sys.platform = "darwin"
    platform.system = lambda: "Darwin"
    for module, names in ONLY_LINUX.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    proxies = types.ModuleType("_scproxy")  # of macOS: urllib reads the system's proxies from it
    proxies._get_proxies = proxies._get_proxy_settings = dict  # type: ignore[attr-defined]
    sys.modules["_scproxy"] = proxies
    builtins.open = io.open = _hiding(io.open)
    for name in ("open", "stat", "lstat", "listdir", "scandir", "readlink", "access"):
        setattr(os, name, _hiding(getattr(os, name)))
    _note(f"process {sys.argv[0] if hasattr(sys, 'argv') and sys.argv else ''}")
