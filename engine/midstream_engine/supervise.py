"""``python -m midstream_engine.supervise --attempt DIR --process P [OPTIONS] -- COMMAND...``

What stays beside an engine on its host, whoever started it and whether or not anybody still looks.

It starts the command, hands signals on to it, and writes ``exit-<p>.json`` when it has ended: how, and with which last
words, also where a signal ended it. A process that lives and makes no step any more is ended, because no heartbeat
notices one (it beats on). Where another process of the attempt has failed in the same directory, this one is ended too,
after some time to end by itself. The engine dies with its supervisor. Once Google's metadata server says that this
machine will be taken away, an engine that trains is told to save. Standard library alone.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from midstream_engine import records
from midstream_engine.preemption_notices import Notices

POLL = 0.5  # seconds between two looks
STALL_TIMEOUT = 900.0  # seconds without a step
SLOWEST = 20.0  # times the longest step so far: a run of slow steps is not stuck
PATIENCE = 4.0  # times as long for what comes before the first step: compiling, restoring
FOLLOW = 30.0  # seconds to end by itself once another process has failed
ABORTING = 5.0  # seconds between SIGABRT, which lets it say where it stands, and SIGKILL
LOG_BYTES = 8192
PR_SET_PDEATHSIG = 1

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
BEGINNING = frozenset({records.STARTING, records.COMPILING, records.RESTORING})
STEPPING = frozenset({records.TRAINING, records.REPLAYING, records.SAVING, records.STOPPING})


class Progress:
    """When the engine last got on, by its status. Waiting for an order is no standstill."""

    def __init__(self, stall_timeout: float, now: float):
        self._limit = stall_timeout
        self._mark: tuple[object, ...] = ()
        self._since = now
        self._longest = 0.0

    def standstill(self, status: records.Status | None, now: float) -> float:
        """Seconds without a step where they are too many, else 0."""
        state = status.state if status else records.STARTING
        mark = (state, status.step, getattr(status, "progress", 0.0)) if status else ()
        if mark != self._mark:
            if self._mark and mark and self._mark[1] != mark[1]:
                self._longest = max(self._longest, now - self._since)
            self._mark, self._since = mark, now
        limit = max(self._limit, SLOWEST * self._longest)
        if state in BEGINNING:
            limit *= PATIENCE
        elif state not in STEPPING:
            return 0.0
        passed = now - self._since
        return passed if passed > limit else 0.0


class Supervisor:
    """One engine process of one attempt. ``attempt`` is the attempt's directory."""

    def __init__(
        self,
        attempt: str,
        process: int,
        command: Sequence[str],
        stall_timeout: float = STALL_TIMEOUT,
        secrets: Mapping[str, str] | None = None,
    ):
        self._files = records.AttemptPaths(attempt)
        self._process = process
        self._command = list(command)
        self._secrets = dict(secrets or {})
        self._progress = Progress(stall_timeout, time.monotonic())
        self._failed_peer = ""
        self._peer_since = 0.0
        self._why = ""  # what this supervisor ended the engine for
        self._stuck = False
        self._notices, self._notice = Notices(), ""

    def run(self) -> int:
        """The engine's exit code; 128 + the signal's number where one ended it."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, *FORWARDED])
        try:
            return self._run()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _run(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._files.exit(self._process))
        environment = {**os.environ, **self._secrets}
        engine = subprocess.Popen(self._command, env=environment, preexec_fn=_die_together(os.getpid()))
        self._notices.start()
        while (code := engine.poll()) is None:
            arrived = signal.sigtimedwait([signal.SIGCHLD, *FORWARDED], POLL)
            if arrived is not None and arrived.si_signo in FORWARDED:
                engine.send_signal(arrived.si_signo)
            elif arrived is None and (why := self._reason_to_end()):
                self._why = why
                self._end(engine)
            elif arrived is None:
                self._save_in_time(engine)
        self._report(code)
        if os.path.dirname(os.getcwd()) == os.path.abspath(self._files.dir):  # the directory that it was started in
            with contextlib.suppress(OSError):  # not empty: what the engine left there, a core dump say, is of use
                os.rmdir(os.getcwd())
        return code if code >= 0 else 128 - code

    def _reason_to_end(self) -> str:
        status = self._status()
        passed = self._progress.standstill(status, time.monotonic())
        if passed:
            self._stuck = True
            where = f"{status.state} at step {status.step}" if status else "before its first status"
            return f"no progress for {passed:.0f} s ({where})"
        if not self._failed_peer:
            self._failed_peer, self._peer_since = self._look_for_peers(), time.monotonic()
        if self._failed_peer and time.monotonic() - self._peer_since > FOLLOW:
            return f"{self._failed_peer} failed"
        return ""

    def _save_in_time(self, engine: subprocess.Popen[bytes]) -> None:
        """Once a notice has come and the engine trains. All processes save at the same step, whichever was told."""
        self._notice = self._notice or self._notices.take()
        status = self._status() if self._notice else None
        if status is not None and status.state == records.TRAINING:
            print(
                f"midstream: this machine is about to be taken away ({self._notice}): a save is asked for", flush=True
            )
            self._notice = ""
            engine.send_signal(signal.SIGUSR1)

    def _look_for_peers(self) -> str:
        for name in os.listdir(self._files.dir):
            if name.startswith("exit-") and name.endswith(".json") and name != f"exit-{self._process}.json":
                with contextlib.suppress(records.RecordError, FileNotFoundError):
                    ended = records.ProcessExit.read(os.path.join(self._files.dir, name))
                    if ended.failed:
                        return f"process {ended.process}"
        return ""

    def _status(self) -> records.Status | None:
        try:
            return records.Status.read_or_none(self._files.status(self._process))
        except (OSError, records.RecordError):  # a disk that hangs or fills is not the engine's standstill
            return None

    @staticmethod
    def _end(engine: subprocess.Popen[bytes]) -> None:
        engine.send_signal(signal.SIGABRT)
        try:
            engine.wait(ABORTING)
        except subprocess.TimeoutExpired:
            engine.kill()
            engine.wait()

    def _report(self, code: int) -> None:
        status = self._status()
        if status is not None and status.pid == os.getpid():
            status = None
        name = "" if code >= 0 else signal.Signals(-code).name
        records.ProcessExit(
            process=self._process,
            code=code if code >= 0 else None,
            signal=name,
            stalled=self._stuck,
            time=time.time(),
            state=status.state if status else "",
            step=status.step if status else 0,
            heartbeat=status.heartbeat if status else 0.0,
            message=self._why or self._message(code, name, status),
        ).write(self._files.exit(self._process))

    def _message(self, code: int, name: str, status: records.Status | None) -> str:
        if code == 0:
            return ""
        if status is not None and status.state == records.FAILED and status.message:
            return status.message
        words = last_line(self._files.log(self._process))
        if name == "SIGKILL":
            return "killed with SIGKILL: by hand, or by the system for want of memory"
        return f"{'ended by ' + name if name else f'exit code {code}'}{': ' + words if words else ''}"


def last_line(path: str) -> str:
    """The last line of a log that says something."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def _die_together(parent: int):
    """For the child, before it becomes the engine: signals as they were, and an end with its supervisor."""
    libc = ctypes.CDLL(None, use_errno=True)  # loaded here: nothing is imported between fork and exec

    def prepare() -> None:
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(records.EXIT_FAILED)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    return prepare


def read_secrets(path: str, *, keep: bool) -> dict[str, str]:
    """Read the file, and remove it unless it is to stay: from here on the engine's environment has them."""
    secrets = records.read_json(path)
    if not keep:
        with contextlib.suppress(OSError):  # a disk that became read-only: the engine says so better
            os.unlink(path)
    return secrets


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code of the command line."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(prog="python -m midstream_engine.supervise", allow_abbrev=False)
    parser.add_argument("--attempt", required=True)
    parser.add_argument("--process", type=int, required=True)
    parser.add_argument("--stall-timeout", type=float, default=STALL_TIMEOUT)
    parser.add_argument("--secrets", help="a JSON file of names and values for the command's environment")
    parser.add_argument("--keep-secrets", action="store_true", help="leave that file: another start will read it")
    options = parser.parse_args(words[:cut])
    command = words[cut + 1 :]
    if not command:
        parser.error("no command after --")
    secrets = read_secrets(options.secrets, keep=options.keep_secrets) if options.secrets else {}
    return Supervisor(options.attempt, options.process, command, options.stall_timeout, secrets).run()


if __name__ == "__main__":
    sys.exit(main())
