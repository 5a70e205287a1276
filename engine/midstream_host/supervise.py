"""Supervise one engine process on its host. Standard library only.

    python -m midstream_host.supervise --attempt DIR --process P [OPTIONS] -- COMMAND...

The supervisor starts the command, forwards signals to it, and writes ``exit-<p>.json`` when it has exited: the exit
code or signal, and the last line of its log. The supervisor ends an engine that makes no progress; the heartbeat cannot
show that, because it has a thread of its own. If another process of the attempt has failed in the same directory, it
ends this one too, after `PEER_TIMEOUT`. The engine is killed when its supervisor exits. When Google's metadata server
announces that this machine will be preempted, the supervisor sends a training engine the signal to save.

An attempt may be started a second time, as a requeued job is: status and exits of its earlier start do not count. An
earlier start that still runs, on a node that does not answer SLURM, records no exit: that would be a failed peer of the
newer one.
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
from collections.abc import Callable, Mapping, Sequence

from midstream_core import records
from midstream_core.json_types import object_or_empty
from midstream_host.memory_kills import MemoryKills
from midstream_host.preemption_watch import PreemptionNotices

POLL_INTERVAL = 0.5  # seconds
STALL_TIMEOUT = 900.0  # seconds without a step
STEP_FACTOR = 20.0  # the stall timeout is at least this multiple of the longest step so far
START_FACTOR = 4.0  # multiple of the stall timeout before the first step: compiling, restoring
PEER_TIMEOUT = 30.0  # seconds for the engine to exit by itself after another process has failed
ABORT_TIMEOUT = 5.0  # seconds between SIGABRT, at which the engine writes its stacks, and SIGKILL
LOG_BYTES = 8192  # end of the log that is searched for its last line
PR_SET_PDEATHSIG = 1

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
BEGINNING = frozenset({records.STARTING, records.COMPILING, records.RESTORING})
STEPPING = frozenset({records.TRAINING, records.REPLAYING, records.SAVING, records.STOPPING})


class StallTimer:
    """Time since the engine's last progress, by its status.

    Waiting for a command is not a stall.
    """

    def __init__(self, stall_timeout: float, now: float) -> None:
        self._timeout = stall_timeout
        self._mark: tuple[object, ...] = ()
        self._since = now
        self._longest = 0.0

    def stalled_seconds(self, status: records.Status | None, now: float) -> float:
        """Return the seconds without progress if they exceed the timeout, else 0."""
        state = status.state if status else records.STARTING
        mark = (state, status.step, getattr(status, "progress", 0.0)) if status else ()
        if mark != self._mark:
            if self._mark and mark and self._mark[1] != mark[1]:
                self._longest = max(self._longest, now - self._since)
            self._mark, self._since = mark, now
        timeout = max(self._timeout, STEP_FACTOR * self._longest)
        if state in BEGINNING:
            timeout *= START_FACTOR
        elif state not in STEPPING:
            return 0.0
        passed = now - self._since
        return passed if passed > timeout else 0.0


class Supervisor:
    """Supervisor of one engine process of the attempt in the directory ``attempt``."""

    def __init__(
        self,
        attempt: str,
        process: int,
        command: Sequence[str],
        stall_timeout: float = STALL_TIMEOUT,
        secrets: Mapping[str, str] | None = None,
    ) -> None:
        self._files = records.AttemptPaths(attempt)
        self._process = process
        self._command = list(command)
        self._secrets = dict(secrets or {})
        self._progress = StallTimer(stall_timeout, time.monotonic())
        self._earlier_engine: records.ProcessIdentity | None = None  # of an earlier start of this attempt
        self._engine: records.ProcessIdentity | None = None  # of its own engine, by the first status of that
        self._earlier_exits: dict[str, records.ProcessExit] = {}  # of that start, by the names of their files
        self._failed_peer = ""
        self._peer_since = 0.0  # since when it counts as failed
        self._reason = ""  # why this supervisor ended the engine
        self._stalled = False
        self._notices, self._notice = PreemptionNotices(), ""
        self._memory_kills = MemoryKills()

    def run(self) -> int:
        """Run the engine; return its exit code, or 128 + the signal that ended it."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, *FORWARDED])
        try:
            return self._run()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _run(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._files.exit(self._process))
        earlier = self._status()
        if earlier is not None:
            self._earlier_engine, self._engine = earlier.identity, None
            with contextlib.suppress(OSError):
                self._earlier_exits = dict(self._failed_exits())
        environment = {**os.environ, **self._secrets}
        engine = subprocess.Popen(self._command, env=environment, preexec_fn=_child_setup(os.getpid()))
        self._notices.start()
        while (code := engine.poll()) is None:
            arrived = signal.sigtimedwait([signal.SIGCHLD, *FORWARDED], POLL_INTERVAL)
            if arrived is not None and arrived.si_signo in FORWARDED:
                engine.send_signal(arrived.si_signo)
            elif arrived is None and (reason := self._reason_to_end()):
                self._reason = reason
                self._end(engine)
            elif arrived is None:
                self._save_before_preemption(engine)
        self._report(code)
        if os.path.dirname(os.getcwd()) == os.path.abspath(self._files.dir):  # the attempt's working directory
            with contextlib.suppress(OSError):  # not empty: a core dump, for example, is kept for the user
                os.rmdir(os.getcwd())
        return code if code >= 0 else 128 - code

    def _reason_to_end(self) -> str:
        status = self._status()
        passed = self._progress.stalled_seconds(status, time.monotonic())
        if passed:
            self._stalled = True
            where = f"{status.state} at step {status.step}" if status else "before its first status"
            return f"no progress for {passed:.0f} s ({where})"
        failed = self._find_failed_peers()
        if self._failed_peer not in failed:  # a peer that is started again removes the record of its last exit
            self._failed_peer, self._peer_since = next(iter(failed), ""), time.monotonic()
        if self._failed_peer and time.monotonic() - self._peer_since > PEER_TIMEOUT:
            return f"{self._failed_peer} failed"
        return ""

    def _save_before_preemption(self, engine: subprocess.Popen[bytes]) -> None:
        """Send the save signal if a notice has come and the engine trains.

        All processes save at the same step, whichever of them gets the signal.
        """
        self._notice = self._notice or self._notices.take()
        status = self._status() if self._notice else None
        if status is not None and status.state == records.TRAINING:
            engine.send_signal(signal.SIGUSR1)
            _print(f"this machine is about to be preempted ({self._notice}): requesting a save")
            self._notice = ""

    def _find_failed_peers(self) -> list[str]:
        """Return the failed peers; the one found before where the disk does not answer."""
        try:
            exits = self._failed_exits()
        except OSError:
            return [self._failed_peer] if self._failed_peer else []
        return [f"process {ended.process}" for name, ended in exits if ended != self._earlier_exits.get(name)]

    def _failed_exits(self) -> list[tuple[str, records.ProcessExit]]:
        """Return the exits of failed peers that can be read, by file name. Raises OSError."""
        exits: list[tuple[str, records.ProcessExit]] = []
        for name in sorted(os.listdir(self._files.dir)):
            if name.startswith("exit-") and name.endswith(".json") and name != f"exit-{self._process}.json":
                with contextlib.suppress(records.RecordError, OSError):
                    ended = records.ProcessExit.read(os.path.join(self._files.dir, name))
                    if ended.failed:
                        exits.append((name, ended))
        return exits

    def _status(self) -> records.Status | None:
        try:
            status = records.Status.read_or_none(self._files.status(self._process))
        except (OSError, records.RecordError):  # a disk that hangs or is full does not mean that the engine stalled
            return None
        if status is None or status.identity == self._earlier_engine:
            return None
        self._engine = self._engine or status.identity
        return status

    @staticmethod
    def _end(engine: subprocess.Popen[bytes]) -> None:
        engine.send_signal(signal.SIGABRT)
        try:
            engine.wait(ABORT_TIMEOUT)
        except subprocess.TimeoutExpired:
            engine.kill()
            engine.wait()

    def _report(self, code: int) -> None:
        status = self._status()
        if status is not None and status.identity != self._engine:
            _print("another start of the attempt has its files: this end is not recorded")
            return
        if status is not None and status.pid == os.getpid():
            status = None
        name = "" if code >= 0 else signal.Signals(-code).name
        ended = records.ProcessExit(
            process=self._process,
            code=code if code >= 0 else None,
            signal=name,
            stalled=self._stalled,
            time=time.time(),
            state=status.state if status else "",
            step=status.step if status else 0,
            heartbeat=status.heartbeat if status else 0.0,
            message=self._reason or self._message(code, name, status),
        )
        try:
            ended.write(self._files.exit(self._process))
        except OSError as error:  # a full disk: the exit code remains the engine's
            _print(f"the engine's end is not recorded: {error}")

    def _message(self, code: int, name: str, status: records.Status | None) -> str:
        if code == 0:
            return ""
        if status is not None and status.state == records.FAILED and status.message:
            return status.message
        line = last_line(self._files.log(self._process))
        if name == "SIGKILL" and (evidence := self._memory_kills.evidence()):
            return f"killed with SIGKILL: {evidence}"
        if name == "SIGKILL":
            return "killed with SIGKILL, by a user or by the system (hint: dmesg shows whether memory was exhausted)"
        return f"{'ended by ' + name if name else f'exit code {code}'}{': ' + line if line else ''}"


def _print(line: str) -> None:
    """Print a line to the log; a log on a full disk must not end the engine.

    Nothing is buffered: the interpreter would write the rest at its exit, and replace the exit code where it cannot.
    """
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), f"midstream: {line}\n".encode())


def last_line(path: str) -> str:
    """Return the last line of a log that is not empty, at most 300 characters."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def _child_setup(parent: int) -> Callable[[], None]:
    """Return what the child runs before exec.

    The function unblocks signals, and lets the child be killed when its supervisor exits.
    """
    libc = ctypes.CDLL(None, use_errno=True)  # loaded here, because nothing may be imported between fork and exec

    def prepare() -> None:
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(records.EXIT_FAILED)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    return prepare


def read_secrets(path: str, *, keep: bool) -> dict[str, str]:
    """Read the secrets for the engine's environment.

    The file is removed unless ``keep``.
    """
    secrets = {name: str(value) for name, value in object_or_empty(records.read_json(path)).items()}
    if not keep:
        with contextlib.suppress(OSError):  # on a read-only disk the engine fails with a clearer message
            os.unlink(path)
    return secrets


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(prog="python -m midstream_host.supervise", allow_abbrev=False)
    parser.add_argument("--attempt", required=True)
    parser.add_argument("--process", type=int, required=True)
    parser.add_argument("--stall-timeout", type=float, default=STALL_TIMEOUT)
    parser.add_argument("--secrets", help="JSON file with variables for the command's environment")
    parser.add_argument("--keep-secrets", action="store_true", help="keep that file, which another start reads")
    options = parser.parse_args(words[:cut])
    command = words[cut + 1 :]
    if not command:
        parser.error("no command after --")
    secrets = read_secrets(options.secrets, keep=options.keep_secrets) if options.secrets else {}
    return Supervisor(options.attempt, options.process, command, options.stall_timeout, secrets).run()


if __name__ == "__main__":
    sys.exit(main())
