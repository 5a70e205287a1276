"""Put the engine on this host, start it apart from any connection, and say how an attempt is doing."""

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

from midstream.remote.runs import run_state, slurm
from midstream_engine import records

STAMP = ".complete.json"
LAUNCHED = "launch.json"  # in the attempt's directory: process 0, before it has written a status
RUN_DIRECTORY = "MIDSTREAM_RUN_DIRECTORY"  # in the engine's environment: what relative paths of its config begin with
WORK = "work-"  # beginning of a name in the attempt's directory: an empty directory that an engine starts in
SECRETS = ".secrets"  # a directory of the run, which its owner alone can enter
LOG_BYTES = 16384  # of a log's end that are looked at
SETUP_FAILED = 78  # sysexits' EX_CONFIG
ENDING = 30.0  # seconds that a process may take to end after its last status


# ------------------------------------------------------------------------------------------------------ install


def installed(root: str, digest: str) -> Optional[str]:
    """The directory of the engine ``digest``, None where it is not there, or where it is not what was installed."""
    directory = _engine_directory(root, digest)
    try:
        stamp = records.read_json_or_none(posixpath.join(directory, STAMP))
        if stamp is None:
            return None
        for path, sha256 in stamp["files"].items():
            with open(posixpath.join(directory, path), "rb") as file:
                if hashlib.sha256(file.read()).hexdigest() != sha256:
                    return None
        # The directory goes on PYTHONPATH: a module beside the engine's package would be imported in another's place.
        own = {path.split("/")[0] for path in stamp["files"]}
        if not set(os.listdir(directory)) <= {*own, STAMP, "__pycache__"}:
            return None
    except (records.RecordError, FileNotFoundError, KeyError):
        return None
    return directory


def install(root: str, digest: str, archive: str) -> str:
    """Unpack the engine (base64 of a gzipped tar whose SHA-256 is ``digest``) and return its directory. It appears
    there at once and whole; a second installer finds it done."""
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
            if os.path.exists(directory):  # damaged: nobody can be relying on it
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
    files = {}
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


def start(
    root: str,
    run_id: str,
    number: int,
    argv: Sequence[str],
    env: Mapping[str, str],
    setup: Sequence[str] = (),
    config: Optional[str] = None,
    order: Optional[Mapping[str, Any]] = None,
    process: int = 0,
    group: Sequence[str] = (),
    secrets: Optional[Mapping[str, str]] = None,
) -> Dict[str, Any]:
    """Write the attempt's order, and the run's config where there is none yet; start ``argv`` in a session of its own,
    its output appended to the attempt's log. Returns the process' identity, which ``setup`` does not change: the
    engine takes the shell's place. ``process`` is its number in a ``group`` of hosts, named in the order of their
    processes. ``secrets`` go into a file that its owner alone can read, for the engine's supervisor.

    It starts in a new, empty directory: programs read files of the directory that they start in (modules, settings of
    W&B or uv), and into the run's directory other hosts' files are copied. Copies bring nothing into this one.

    Refused where another attempt of the run lives, whoever started it: a start that arrives late (its caller died, or
    gave up) makes no second one. The claim on the number is given back then. Where this very process of the attempt was
    started already, its identity is returned: contact was lost before the first answer arrived."""
    paths = records.RunPaths(root, records.check_run_id(run_id))
    attempt = paths.attempt(number)
    command = with_setup(argv, setup)
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONHOME", "PYTHONPATH")}
    environment.update(env)
    _wait_for_ends(root, run_id)
    with records.locked(paths.lock):
        before = records.read_json_or_none(attempt.launched(process))
        if before is not None:
            return dataclasses.asdict(records.ProcessIdentity.from_json(before, attempt.launched(process)))
        living = run_state.running_attempt(root, run_id)
        if living and not (process and living == number):
            with contextlib.suppress(OSError):  # only an empty claim is nobody's
                os.rmdir(attempt.dir)
            raise run_state.Refused("attempt {} of {} runs here already".format(living, run_id))
        _lay_out(paths, number, config, order)
        put_secrets(secrets_file(root, run_id, number, str(process)), secrets or {})
        launched = attempt.launched(process)
        note = {"process": process, "group": list(group)} if group else {}
        work = tempfile.mkdtemp(prefix="{}{}-".format(WORK, process), dir=attempt.dir)
        return spawn(detached(command), environment, work, attempt.log(process), launched, note)


def submit(
    root: str,
    run_id: str,
    number: int,
    flags: Sequence[str],
    script: str,
    rank: str,
    config: Optional[str] = None,
    order: Optional[Mapping[str, Any]] = None,
    secrets: Optional[Mapping[str, str]] = None,
) -> str:
    """The same as a job of SLURM, whose id is returned. A claim for which there is no job is given back."""
    paths = records.RunPaths(root, records.check_run_id(run_id))
    attempt = paths.attempt(number)
    _wait_for_ends(root, run_id)
    with records.locked(paths.lock):
        before = slurm.job_of(attempt)  # submitted already: contact was lost before the first answer arrived
        if before is not None:
            return before
        living = run_state.running_attempt(root, run_id)
        if living:
            give_back(root, run_id, number)
            raise run_state.Refused("attempt {} of {} runs here already".format(living, run_id))
        _lay_out(paths, number, config, order)
        put_secrets(secrets_file(root, run_id, number), secrets or {})
        try:
            return slurm.submit(attempt, flags, script, rank, {})
        except slurm.SlurmError:
            put_secrets(secrets_file(root, run_id, number), {})
            shutil.rmtree(attempt.dir)
            raise


def _wait_for_ends(root: str, run_id: str) -> None:
    """While an attempt lives that has said its last word: its process takes a moment to end. It may be another host's
    on this machine, whose statuses came with the run's history."""
    deadline = time.monotonic() + ENDING
    while time.monotonic() < deadline:
        living = run_state.running_attempt(root, run_id)
        found = run_state.status(root, run_id, living)["status"] if living else None
        if found is None or found["state"] not in records.ENDED:
            return
        time.sleep(0.1)


def _lay_out(
    paths: records.RunPaths,
    number: int,
    config: Optional[str],
    order: Optional[Mapping[str, Any]],
) -> None:
    """What has to be there before an engine is."""
    if not os.path.exists(paths.config):
        if config is None:
            raise FileNotFoundError("run {} has no config: {} is missing".format(paths.run_id, paths.config))
        records.write_bytes(paths.config, config.encode())
    path = paths.attempt(number).command_file
    if order is not None and not os.path.exists(path):  # another process' start wrote it here; a newer one stays
        records.write_json(path, dict(order))


def secrets_file(root: str, run_id: str, number: int, process: str = "") -> str:
    """Where the supervisor of a process of an attempt finds its secrets; without ``process``, those of a job."""
    name = "{:03d}{}.json".format(number, "-" + process if process else "")
    return posixpath.join(records.RunPaths(root, run_id).dir, SECRETS, name)


def put_secrets(path: str, secrets: Mapping[str, str]) -> None:
    """Write them for their owner alone. What an earlier attempt left there, which is no longer alive, is removed."""
    directory, name = posixpath.split(path)
    if os.path.islink(directory):
        os.unlink(directory)
    attempt = name.partition(".")[0].partition("-")[0]
    for left in os.listdir(directory) if os.path.isdir(directory) else ():
        if left == name or left.partition(".")[0].partition("-")[0] != attempt:
            os.unlink(posixpath.join(directory, left))
    if secrets:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        os.chmod(directory, 0o700)  # the umask has no say
        records.write_bytes(path, json.dumps(dict(secrets)).encode(), mode=0o600)


def remove_secrets(root: str, run_id: str) -> None:
    """Remove what launches of a run have left, unless an attempt of it lives here: a job may be started again."""
    paths = records.RunPaths(root, records.check_run_id(run_id))
    with records.locked(paths.lock):
        if not run_state.running_attempt(root, run_id):
            shutil.rmtree(posixpath.join(paths.dir, SECRETS), ignore_errors=True)


def give_back(root: str, run_id: str, number: int) -> None:
    """End a claim on an attempt in which nothing was started."""
    with contextlib.suppress(OSError):  # it is not empty: somebody's after all
        os.rmdir(records.RunPaths(root, records.check_run_id(run_id)).attempt(number).dir)


def with_setup(argv: Sequence[str], setup: Sequence[str]) -> List[str]:
    """``argv`` after the lines of ``setup``, which one shell evaluates; one that fails ends it and is named."""
    if not setup:
        return list(argv)
    lines = [
        "eval {0} || {{ echo setup: {0} failed >&2; exit {1}; }}".format(shlex.quote(line), SETUP_FAILED)
        for line in setup
    ]
    return ["/bin/sh", "-c", "\n".join([*lines, 'exec "$@"']), "sh", *argv]


def detached(argv: Sequence[str]) -> List[str]:
    """``argv`` so that it outlives the login it is started from. A session of its own is enough, unless systemd-logind
    is told to kill what a user leaves behind: then it goes into a scope of its own, where systemd gives one."""
    if not kills_left_behind():
        return list(argv)
    flags = [] if os.geteuid() == 0 else ["--user"]
    scope = ["systemd-run", *flags, "--scope", "--quiet", "--collect", "--"]
    return [*scope, *argv] if _succeeds([*scope, "true"]) else list(argv)


def kills_left_behind() -> bool:
    """Whether systemd-logind here ends a user's processes with the last login (KillUserProcesses)."""
    asked = "org.freedesktop.login1"
    words = ["busctl", "get-property", asked, "/org/freedesktop/login1", asked + ".Manager", "KillUserProcesses"]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
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
) -> Dict[str, Any]:
    """Start ``argv`` as a grandchild in a session of its own and return its identity once it runs. ``launched`` is
    written by the process itself before it becomes ``argv``, so none runs unrecorded; ``note`` is written there too.
    OSError where it cannot run."""
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
        said = [json.loads(line) for line in pipe]
    errors = [line["error"] for line in said if "error" in line]
    if errors or not said:
        raise OSError("{} cannot be started: {}".format(argv[0], errors[0] if errors else "its process died"))
    return said[0]


def _become(argv: Sequence[str], env: Mapping[str, str], directory: str, output: int, keep: int) -> None:
    """Shed what belongs to the connection, then exec."""
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


# ---------------------------------------------------------------------------------------------------- look after


def attempt(root: str, run_id: str, number: int, lines: int = 20) -> Dict[str, Any]:
    """What this host knows of an attempt: ``{now, group, processes, status, alive, log}``. ``group`` names the hosts of
    its processes, in their order, where there are several.

    ``processes`` has one entry for each process that was started here, or that shares the directory: ``{process,
    status, alive, supervised, exit, log}`` with its status and the record of its end (None where there is none yet),
    whether that very process and its supervisor run here, and the last lines of its log. ``status``, ``alive`` and
    ``log`` are those of the first."""
    paths = records.RunPaths(root, records.check_run_id(run_id)).attempt(number)
    if not os.path.isdir(paths.dir):
        raise FileNotFoundError("run {} has no attempt {}".format(run_id, number))
    found = [_process(root, run_id, number, process, lines) for process in run_state.processes(paths)]
    first = found[0] if found else {"status": None, "running": False, "log": []}
    return {
        "now": time.time(),
        "group": _group(paths),
        "processes": found,
        "status": first["status"],
        "running": first["running"],
        "log": first["log"],
    }


def _group(paths: records.AttemptPaths) -> List[str]:
    for process in run_state.processes(paths):
        launched = records.read_json_or_none(paths.launched(process))
        if launched and launched.get("group"):
            return list(launched["group"])
    return []


def _process(root: str, run_id: str, number: int, process: int, lines: int) -> Dict[str, Any]:
    paths = records.RunPaths(root, run_id).attempt(number)
    found = run_state.status_of(paths, process)
    supervised = run_state.launched_running(paths, process)  # before its last word is looked for
    ended = records.ProcessExit.read_or_none(paths.exit(process))
    return {
        "process": process,
        **found,
        "supervised": supervised,
        "job": slurm.described(paths) if process == 0 else None,
        "exit": None if ended is None else ended.to_json(),
        "log": _tail(paths.log(process), lines),
    }


def _tail(path: str, lines: int) -> List[str]:
    try:
        with records.open_regular(path) as file:
            file.seek(max(0, os.stat(path).st_size - LOG_BYTES))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []
