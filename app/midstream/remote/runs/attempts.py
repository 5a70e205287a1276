"""Attempts on this host: engine installation, start and state of their processes."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
import os
import posixpath
import shlex
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

from midstream.remote.declarations import reads, repeatable
from midstream.remote.runs import run_state, slurm
from midstream.remote.shapes import FileName, Text
from midstream_engine import records

STAMP = ".complete.json"
RUN_DIRECTORY = "MIDSTREAM_RUN_DIRECTORY"  # environment variable: base of relative paths in the config
WORK = "work-"  # prefix of working directories in the attempt's directory
SECRETS = ".secrets"  # directory of the run, mode 0700
LOG_BYTES = 16384  # read from a log's end
SETUP_FAILED = 78  # sysexits' EX_CONFIG
EXIT_TIMEOUT = 30.0  # seconds from a process's last status to its exit


@dataclasses.dataclass(frozen=True)
class ProcessView(run_state.ProcessState):
    """A process of an attempt.

    ``supervised``: its supervisor runs and will record how it ends.
    """

    process: int
    supervised: bool
    job: Optional[slurm.JobState]
    exit: Optional[records.ProcessExit]
    log: List[Text]  # its last lines


@dataclasses.dataclass(frozen=True)
class AttemptView(run_state.ProcessState):
    """An attempt on this host.

    ``status``, ``running`` and ``log`` are those of its first process here.
    """

    now: float  # UTC seconds by this host's clock
    group: List[str]  # the hosts of its processes in their order, where there are several
    processes: List[ProcessView]
    log: List[Text]


# ------------------------------------------------------------------------------------------------------ install


@reads()
def installed(root: str, digest: str) -> Optional[FileName]:
    """Directory of the engine ``digest``; None where it is absent or was changed."""
    directory = _engine_directory(root, digest)
    try:
        stamp = records.read_json_or_none(posixpath.join(directory, STAMP))
        if stamp is None:
            return None
        for path, sha256 in stamp["files"].items():
            with open(posixpath.join(directory, path), "rb") as file:
                if hashlib.sha256(file.read()).hexdigest() != sha256:
                    return None
        # The directory is on PYTHONPATH: a module beside the engine's package could be imported instead of another.
        own = {path.split("/")[0] for path in stamp["files"]}
        if not set(os.listdir(directory)) <= {*own, STAMP, "__pycache__"}:
            return None
    except (records.RecordError, FileNotFoundError, KeyError):
        return None
    return directory


@repeatable("a second call finds the engine installed")
def install(root: str, digest: str, archive: str) -> FileName:
    """Unpack the engine and return its directory; a second call finds it installed.

    ``archive`` is the base64 of a gzipped tar whose SHA-256 is ``digest``. The directory appears in one rename.
    """
    present = installed(root, digest)
    if present is not None:
        return present
    tar = gzip.decompress(base64.b64decode(archive))
    if hashlib.sha256(tar).hexdigest() != digest:
        raise ValueError("the engine's archive is not the one that was announced")
    directory = _engine_directory(root, digest)
    temporary = "{}.incoming-{}".format(directory, os.getpid())
    os.makedirs(temporary)
    try:
        files = _unpack(tar, temporary)
        records.write_json(posixpath.join(temporary, STAMP), {"digest": digest, "files": files})
        with records.locked(posixpath.join(root, "engines", ".lock")):
            present = installed(root, digest)
            if present is not None:
                return present
            if os.path.exists(directory):  # damaged: no process can use it
                shutil.rmtree(directory)
            os.rename(temporary, directory)
            records.sync_directory(os.path.dirname(directory))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return directory


def _engine_directory(root: str, digest: str) -> str:
    return posixpath.join(root, "engines", digest[:16])


def _unpack(tar: bytes, directory: str) -> Dict[str, str]:
    """Write the archive's files, and return their hashes by path."""
    files: Dict[str, str] = {}
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        for member in archive:
            if not (member.isfile() and records.safe_relative(member.name)):
                raise ValueError("the engine's archive holds {!r}".format(member.name))
            source = archive.extractfile(member)
            assert source is not None
            content = source.read()
            path = posixpath.join(directory, member.name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            records.write_bytes(path, content)
            files[member.name] = hashlib.sha256(content).hexdigest()
    return files


# -------------------------------------------------------------------------------------------------------- start


@repeatable("a second call finds the process that the first one started")
def start(
    root: str,
    run_id: str,
    number: int,
    argv: Sequence[str],
    env: Mapping[str, str],
    setup: Sequence[str] = (),
    config: Optional[str] = None,
    command: Optional[Mapping[str, Any]] = None,
    process: int = 0,
    group: Sequence[str] = (),
    secrets: Optional[Mapping[str, str]] = None,
) -> records.ProcessIdentity:
    """Start a process of an attempt in a session of its own and return its identity.

    Its output is appended to the attempt's log. It starts in a new, empty directory: programs read files of their
    working directory (modules, settings of W&B or uv), and copies write other hosts' files into the run's directory.

    If this process was started already, its identity is returned: contact was lost before the first answer.

    Args:
        root: Root of this host.
        run_id: The run.
        number: The attempt, which the caller has claimed.
        argv: The program and its arguments.
        env: Added to this process' environment.
        setup: Shell lines to evaluate before the program, in the same process.
        config: Text of the run's config, written where there is none.
        command: JSON of the attempt's first command.
        process: Number of the process in ``group``.
        group: Hosts of the attempt's processes, in their order.
        secrets: Written to a file that only its owner can read, for the engine's supervisor.

    Raises:
        RefusedError: Another attempt of the run runs here; the claim on the number is withdrawn.
    """
    paths = records.RunPaths(root, records.check_run_id(run_id))
    attempt = paths.attempt(number)
    full_argv = with_setup(argv, setup)
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONHOME", "PYTHONPATH")}
    environment.update(env)
    _wait_for_ends(root, run_id)
    with records.locked(paths.lock):
        before = records.read_json_or_none(attempt.launched(process))
        if before is not None:
            return records.ProcessIdentity.from_json(before, attempt.launched(process))
        running = run_state.running_attempt(root, run_id)
        if running and not (process and running == number):
            with contextlib.suppress(OSError):  # only an empty directory is an unused claim
                os.rmdir(attempt.dir)
            raise run_state.RefusedError("attempt {} of {} runs here already".format(running, run_id))
        _write_inputs(paths, number, config, command)
        put_secrets(secrets_file(root, run_id, number, str(process)), secrets or {})
        launched = attempt.launched(process)
        note = {"process": process, "group": list(group)} if group else {}
        work = tempfile.mkdtemp(prefix="{}{}-".format(WORK, process), dir=attempt.dir)
        return spawn(detached(full_argv), environment, work, attempt.log(process), launched, note)


@repeatable("a second call finds the attempt's job")
def submit(
    root: str,
    run_id: str,
    number: int,
    flags: Sequence[str],
    script: str,
    rank: str,
    config: Optional[str] = None,
    command: Optional[Mapping[str, Any]] = None,
    secrets: Optional[Mapping[str, str]] = None,
) -> str:
    """Submit an attempt as a job of SLURM and return the job's id.

    If the attempt has a job already, its id is returned: contact was lost before the first answer.

    Args:
        root: Root of this host.
        run_id: The run.
        number: The attempt, which the caller has claimed.
        flags: Flags of sbatch.
        script: Text of the job's script.
        rank: Text of the script of each process.
        config: Text of the run's config, written where there is none.
        command: JSON of the attempt's first command.
        secrets: Written to a file that only its owner can read, for the engine's supervisor.

    Raises:
        RefusedError: Another attempt of the run runs here; the claim on the number is released.
        SlurmError: The job was not submitted; the claim is released.
    """
    paths = records.RunPaths(root, records.check_run_id(run_id))
    attempt = paths.attempt(number)
    _wait_for_ends(root, run_id)
    with records.locked(paths.lock):
        before = slurm.job_of(attempt)  # submitted already: contact was lost before the first answer arrived
        if before is not None:
            return before
        running = run_state.running_attempt(root, run_id)
        if running:
            release_claim(root, run_id, number)
            raise run_state.RefusedError("attempt {} of {} runs here already".format(running, run_id))
        _write_inputs(paths, number, config, command)
        put_secrets(secrets_file(root, run_id, number), secrets or {})
        try:
            return slurm.submit(attempt, flags, script, rank, {})
        except slurm.SlurmError:
            put_secrets(secrets_file(root, run_id, number), {})
            shutil.rmtree(attempt.dir)
            raise


def _wait_for_ends(root: str, run_id: str) -> None:
    """Wait while an attempt that has reported its end still runs.

    It may be another host's attempt on this machine, whose statuses came with the run's history.
    """
    deadline = time.monotonic() + EXIT_TIMEOUT
    while time.monotonic() < deadline:
        running = run_state.running_attempt(root, run_id)
        found = run_state.status(root, run_id, running).status if running else None
        if found is None or found.state not in records.ENDED:
            return
        job = slurm.described(records.RunPaths(root, run_id).attempt(running))
        if job is not None and job.waits:  # it was requeued, and starts again
            return
        time.sleep(0.1)


def _write_inputs(
    paths: records.RunPaths,
    number: int,
    config: Optional[str],
    command: Optional[Mapping[str, Any]],
) -> None:
    """Write the config and the first command before the engine starts."""
    if not os.path.exists(paths.config):
        if config is None:
            raise FileNotFoundError("run {} has no config: {} is missing".format(paths.run_id, paths.config))
        records.write_bytes(paths.config, config.encode())
    path = paths.attempt(number).command_file
    if command is not None and not os.path.exists(path):  # another process' start wrote it here; a newer one stays
        records.write_json(path, dict(command))


def secrets_file(root: str, run_id: str, number: int, process: str = "") -> str:
    """Return the path of the secrets of a process of an attempt.

    Without ``process``, it is that of the secrets of a job.
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
    for left in os.listdir(directory) if os.path.isdir(directory) else ():
        if left == name or left.partition(".")[0].partition("-")[0] != attempt:
            os.unlink(posixpath.join(directory, left))
    if secrets:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        os.chmod(directory, 0o700)  # regardless of the umask
        records.write_bytes(path, json.dumps(dict(secrets)).encode(), mode=0o600)


@repeatable("what is removed stays removed")
def remove_secrets(root: str, run_id: str) -> None:
    """Remove the secrets of a run unless an attempt of it runs here.

    Its job may be requeued.
    """
    paths = records.RunPaths(root, records.check_run_id(run_id))
    with records.locked(paths.lock):
        if not run_state.running_attempt(root, run_id):
            shutil.rmtree(posixpath.join(paths.dir, SECRETS), ignore_errors=True)


@repeatable("it removes a directory only where that is empty")
def release_claim(root: str, run_id: str, number: int) -> None:
    """Release the claim on an attempt that started no process."""
    with contextlib.suppress(OSError):  # not empty: a process was started
        os.rmdir(records.RunPaths(root, records.check_run_id(run_id)).attempt(number).dir)


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

    Its setting is KillUserProcesses.
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
    note: Optional[Mapping[str, Any]] = None,
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
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
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


# ---------------------------------------------------------------------------------------------------- state


@reads()
def attempt(root: str, run_id: str, number: int, lines: int = 20) -> AttemptView:
    """Return the processes of an attempt on this host or in its directory.

    They have ``lines`` of their logs.
    """
    paths = records.RunPaths(root, records.check_run_id(run_id)).attempt(number)
    if not os.path.isdir(paths.dir):
        raise FileNotFoundError("run {} has no attempt {}".format(run_id, number))
    found = [_process(root, run_id, number, process, lines) for process in run_state.processes(paths)]
    first = found[0] if found else None
    return AttemptView(
        status=first.status if first else None,
        running=first.running if first else False,
        now=time.time(),
        group=_group(paths),
        processes=found,
        log=first.log if first else [],
    )


def _group(paths: records.AttemptPaths) -> List[str]:
    for process in run_state.processes(paths):
        launched = records.read_json_or_none(paths.launched(process))
        if launched and launched.get("group"):
            return list(launched["group"])
    return []


def _process(root: str, run_id: str, number: int, process: int, lines: int) -> ProcessView:
    paths = records.RunPaths(root, run_id).attempt(number)
    found = run_state.status_of(paths, process)
    supervised = run_state.launched_running(paths, process)  # before its exit record is read
    ended = records.ProcessExit.read_or_none(paths.exit(process))
    return ProcessView(
        status=found.status,
        running=found.running,
        process=process,
        supervised=supervised,
        job=slurm.described(paths) if process == 0 else None,
        exit=ended,
        log=_tail(paths.log(process), lines),
    )


def _tail(path: str, lines: int) -> List[str]:
    try:
        with records.open_regular(path) as file:
            file.seek(max(0, os.stat(path).st_size - LOG_BYTES))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []
