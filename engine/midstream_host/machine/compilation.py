"""Compilation of a run's step on this host, with limits of time and memory.

The host need not have the accelerators that the step is compiled for.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import List, Mapping, Sequence

from midstream_core.json_types import JsonValue
from midstream_host.declarations import program
from midstream_host.machine.installers import NEUTRAL

LOOK_INTERVAL = 0.5  # seconds between two looks at the compiler's memory, and at stdin
REPORT_INTERVAL = 2.0  # seconds between two lines while it compiles


@program
def estimate(root: str, config: str, argv: Sequence[str], env: Mapping[str, str], seconds: float, memory: int) -> int:
    """Run the engine's estimate with ``config``.

    The path of the config takes the place of ``{config}`` in ``argv``.

    A program. Events: ``line`` (``text``: a JSON line of the engine), ``running`` (``memory``: bytes that the compiler
    uses), then ``done`` (``code``, ``error``: the last line of stderr, ``seconds``, ``memory``: the most that it used).

    Args:
        root: Root of this host.
        config: Text of the configuration.
        argv: The command.
        env: Added to its environment.
        seconds: After these it is ended.
        memory: Bytes of resident memory above which it is ended; 0: no limit.
    """
    os.makedirs(root, exist_ok=True)
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONHOME", "PYTHONPATH")}
    environment.update(env)
    with tempfile.TemporaryDirectory(prefix=".estimate-", dir=root) as directory:
        path = os.path.join(directory, "config.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(config)
        words = [path if word == "{config}" else word for word in argv]
        try:
            child = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                cwd=NEUTRAL,
                start_new_session=True,
            )
        except OSError as error:
            _emit("done", code=126, error="{}: {}".format(words[0], error.strerror), seconds=0.0, memory=0)
            return 0
        try:
            return _follow(child, seconds, memory)
        finally:
            _end(child)


def _follow(child: "subprocess.Popen[bytes]", seconds: float, memory: int) -> int:
    began = time.monotonic()
    errors: List[str] = []
    assert child.stdout is not None
    assert child.stderr is not None
    stdout, stderr = child.stdout, child.stderr

    def pass_on() -> None:
        for line in stdout:
            _emit("line", text=line.decode(errors="replace").rstrip())

    def remember() -> None:
        for line in stderr:
            text = line.decode(errors="replace").strip()
            if text:
                errors.append(text)
                del errors[:-20]

    threads = [threading.Thread(target=target, daemon=True) for target in (pass_on, remember)]
    for thread in threads:
        thread.start()
    most, said, ended = 0, began, ""
    while child.poll() is None:
        now = time.monotonic()
        used = _resident(child.pid)
        most = max(most, used)
        if _operator_ended():
            return 1
        if now - began > seconds:
            ended = "not compiled within {:.0f} s".format(seconds)
        elif memory and used > memory:
            ended = "the compiler used more than {:.1f} GiB".format(memory / 2**30)
        if ended:
            _end(child)
        elif now - said > REPORT_INTERVAL:
            said = now
            _emit("running", memory=used)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(LOOK_INTERVAL)
    for thread in threads:
        thread.join(10)
    own = [line for line in errors if line.startswith("midstream: ")]
    error = ended or (own or errors or [""])[-1]
    code = 124 if ended else child.returncode
    _emit("done", code=code, error=error[:2000], seconds=time.monotonic() - began, memory=most)
    return 0


def _operator_ended() -> bool:
    """Return whether stdin is closed: the app exited or cancelled this program.

    The app sends no input.
    """
    return bool(select.select([0], [], [], 0)[0]) and not os.read(0, 4096)


def _resident(pid: int) -> int:
    """The bytes of memory that a process has; 0 where the system does not say."""
    try:
        with open("/proc/{}/statm".format(pid), encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _end(child: "subprocess.Popen[bytes]") -> None:
    if child.poll() is None:
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


_lock = threading.Lock()


def _emit(event: str, **fields: JsonValue) -> None:
    with _lock:
        sys.stdout.buffer.write(json.dumps(dict(fields, event=event)).encode() + b"\n")
        sys.stdout.buffer.flush()
