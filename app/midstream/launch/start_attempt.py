"""Start an attempt of a run on one host, follow it until it is where it should be, stop it."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from threading import Event
from typing import Any

from midstream.errors import HostError, LostContact
from midstream.fleet.fleet import HostConfig
from midstream.hosts.deadline import REACHING_STEP, Deadline
from midstream.hosts.host import Host
from midstream.hosts.rpc.remote_program import Cancelled
from midstream.launch.bundle import EngineInstall, install_engine
from midstream.launch.environment import Environment, prepare_environment
from midstream.launch.errors import LaunchError
from midstream.launch.secrets import read_secrets
from midstream.remote.runs.attempts import RUN_DIRECTORY, secrets_file
from midstream_engine import records

POLL = 0.3  # seconds between two looks at an attempt
RECONNECT = 1.0  # seconds between two tries to reach a host again
GONE_WITHIN = 300.0  # seconds that processes may take to end after their last status: they may be stopped, or swap
MODULE = "midstream_engine.train"
SUPERVISOR = "midstream_engine.supervise"
ANY = -1  # a rank's number where its host alone knows which processes there are


@dataclass(frozen=True)
class Rank:
    """One process of an attempt: its number and the host that it runs on."""

    process: int
    host: str


@dataclass(frozen=True)
class Attempt:
    """An engine that was started. ``host`` is that of process 0, ``process`` the identity of what was started there:
    the engine's supervisor. A target of several hosts has one rank a host."""

    host: str
    run_id: str
    number: int
    process: records.ProcessIdentity
    ranks: tuple[Rank, ...] = ()


@dataclass(frozen=True)
class Launch:
    """What an attempt is started with, whatever the target is made of. ``order`` is there before the engine is;
    ``config_text`` becomes run.yaml where the run has none; the attempt's number is ``at_least`` that."""

    run_id: str
    target: str  # its name in the fleet file
    epoch: int = 1
    command: records.Command | None = None
    overrides: tuple[str, ...] = ()
    config_text: str | None = None
    at_least: int = 1


@dataclass(frozen=True)
class Prepared:
    """Engine and environment on one host."""

    engine: EngineInstall
    environment: Environment


@dataclass(frozen=True)
class ProcessPlace:
    """A process's place among those of an attempt; ``coordinator`` is HOST:PORT of process 0, empty where the machines
    know each other without being told."""

    process: int
    hosts: tuple[str, ...]
    coordinator: str

    @property
    def flags(self) -> tuple[str, ...]:
        """What tells the engine so. Dense numbers, a fresh port for every attempt."""
        if not self.coordinator:
            return ("--trainer.distributed.initialize_jax_distributed", "true")
        names = {
            "coordinator_address": self.coordinator,
            "num_processes": str(len(self.hosts)),
            "process_id": str(self.process),
        }
        return tuple(word for name, value in names.items() for word in (f"--trainer.distributed.{name}", value))


def start_attempt(host: Host, config: HostConfig, launch: Launch, prepared: Prepared | None = None) -> Attempt:
    """Claim the run's next attempt and start the engine in it, apart from this connection.

    Engine and environment are put on the host where they are not given. LaunchError, HostError."""
    prepared = prepared or Prepared(install_engine(host), prepare_environment(host, config))
    number = host.call("runs.run_state.claim_attempt", root=host.root, run_id=launch.run_id, at_least=launch.at_least)
    return start_process(host, config, launch, number, prepared)


def start_process(
    host: Host, config: HostConfig, launch: Launch, number: int, prepared: Prepared, place: ProcessPlace | None = None
) -> Attempt:
    """Start one process of attempt ``number``, which is claimed already: the only one, or the one at ``place``."""
    process, python, run_id = place.process if place else 0, prepared.environment.python, launch.run_id
    identity = host.call(
        "runs.attempts.start",
        root=host.root,
        run_id=run_id,
        number=number,
        argv=[
            *supervised(host.root, config, python, run_id, number, str(process)),
            *engine_command(host.root, python, run_id),
            *(place.flags if place else ()),
            *launch.overrides,
        ],
        env={
            **engine_environment(host.root, config, prepared.engine.directory, launch, number),
            "MIDSTREAM_HOST": host.name,
            RUN_DIRECTORY: records.RunPaths(host.root, run_id).dir,
        },
        setup=list(config.setup),
        config=launch.config_text,
        order=None if launch.command is None else launch.command.to_json(),
        process=process,
        group=list(place.hosts) if place else [],
        secrets=read_secrets(host.name, config),
    )
    ranks = tuple(Rank(index, name) for index, name in enumerate(place.hosts)) if place else (Rank(0, host.name),)
    return Attempt(host.name, run_id, number, records.ProcessIdentity.from_json(identity), ranks)


def supervised(root: str, config: HostConfig, python: str, run_id: str, number: int, process: str) -> list[str]:
    """What stands before an engine's command. ``process``: its number, or a job's word for it (``$NAME``)."""
    paths = records.RunPaths(root, run_id)
    words = [python, "-P", "-m", SUPERVISOR, "--attempt", paths.attempt(number).dir, "--process", process]
    if config.secrets:
        if process.isdigit():
            words += ["--secrets", secrets_file(root, run_id, number, process)]
        else:  # a job that is requeued starts again
            words += ["--secrets", secrets_file(root, run_id, number), "--keep-secrets"]
    if config.stall_timeout is not None:
        words += ["--stall-timeout", str(config.stall_timeout)]
    return [*words, "--"]


def engine_command(root: str, python: str, run_id: str) -> list[str]:
    """The engine's own command, without its place among others and without overrides."""
    paths = records.RunPaths(root, run_id)
    flags = ("--config_path", paths.config, "--trainer.id", run_id, "--trainer.root", root)
    return [python, "-P", "-m", MODULE, *flags]


def engine_environment(root: str, config: HostConfig, engine: str, launch: Launch, number: int) -> dict[str, str]:
    """What the engine finds in its environment beside the host's own. The fleet file's ``env:`` may say anything that
    midstream does not have to know itself."""
    own = dict(config.env)
    env = {
        "PYTHONUNBUFFERED": "1",
        **own,
        "PYTHONSAFEPATH": "1",  # for whatever the engine starts itself
        "PYTHONPATH": ":".join(filter(None, (engine, own.get("PYTHONPATH")))),
        "MIDSTREAM_ROOT": root,
        "MIDSTREAM_ATTEMPT": str(number),
        "MIDSTREAM_EPOCH": str(launch.epoch),
        "MIDSTREAM_TARGET": launch.target,
        "RUN_ID": launch.run_id,
    }
    devices = getattr(config, "devices", None)
    if devices:
        flag = f"--xla_force_host_platform_device_count={devices}"
        env["JAX_PLATFORMS"] = "cpu"
        env["XLA_FLAGS"] = " ".join(filter(None, (own.get("XLA_FLAGS"), flag)))
    return env


def look(host: Host, run_id: str, attempt: int) -> Mapping[str, Any]:
    """What the host says of the attempt: ``{now, processes, status, alive, log}``. See ``remote.engine.attempt``."""
    return host.call("runs.attempts.attempt", root=host.root, run_id=run_id, number=attempt)


def wait_state(
    host: Host,
    run_id: str,
    attempt: int,
    states: Collection[str],
    timeout: float,
    cancel: Event | None = None,
) -> records.Status:
    """The attempt's status as soon as its state is one of ``states``.

    LaunchError, with the engine's last lines, where it ended otherwise, died, or took more than ``timeout`` seconds;
    Cancelled, which leaves it running. A lost connection is made again until then: it says nothing of the engine."""
    deadline = Deadline(timeout, REACHING_STEP)
    what = f"attempt {attempt} of {run_id} on {host.name}"
    lost: HostError | None = None
    seen: Mapping[str, Any] | None = None
    while True:
        if cancel is not None and cancel.is_set():
            raise Cancelled(f"no longer waiting for {what}; it goes on")
        try:
            if lost is not None:
                host.connect()
            seen, lost = look(host, run_id, attempt), None
        except LostContact as error:
            lost = error
        except HostError as error:
            if lost is None:
                raise
            lost = error
        if seen is not None and lost is None:
            status = None if seen["status"] is None else records.Status.from_json(seen["status"])
            if status is not None and status.state in states:
                return status
            _check_running(host, what, status, seen)
        if deadline.count():
            raise lost or _late(what, seen, states, timeout)
        pause = POLL if lost is None else RECONNECT
        if cancel is not None:
            cancel.wait(pause)
        else:
            time.sleep(pause)


def _check_running(host: Host, what: str, status: records.Status | None, seen: Mapping[str, Any]) -> None:
    """LaunchError where the engine has ended, or is gone."""
    log = tuple(seen["log"])
    said = next((line for line in reversed(log) if line.strip()), "its log is empty")
    ended = first_exit(seen)
    if status is not None and status.state in records.ENDED:
        raise LaunchError(f"{what} ended ({status.state}): {status.message or said}", log=log)
    if ended is not None and not seen["running"]:
        raise LaunchError(f"{what} ended: {ended.message or said}", f"its log lies on {host.name}", log=log)
    job = seen["processes"][0]["job"] if seen["processes"] else None
    if not seen["running"] and job is not None:
        words = f"{job['state']} {job['reason']}".strip()
        raise LaunchError(f"{what}: its job {job['job']} is gone ({words}): {said}", f"sacct -j {job['job']}", log)
    if not seen["running"] and not is_supervised(seen):
        raise LaunchError(f"{what} is gone without a word: {said}", f"its log lies on {host.name}", log=log)


def first_exit(seen: Mapping[str, Any]) -> records.ProcessExit | None:
    """How the first process of the attempt on this host ended; None where that is not known (yet)."""
    ended = seen["processes"][0]["exit"] if seen["processes"] else None
    return None if ended is None else records.ProcessExit.from_json(ended)


def is_supervised(seen: Mapping[str, Any]) -> bool:
    """Whether something still stands beside the attempt's processes there, and will say how they ended."""
    return any(process["supervised"] for process in seen["processes"])


def _late(what: str, seen: Mapping[str, Any] | None, states: Collection[str], timeout: float) -> LaunchError:
    state = "has no status yet" if not seen or seen["status"] is None else f"is {seen['status']['state']}"
    wanted = " or ".join(sorted(states))
    return LaunchError(f"{what} {state} after {timeout:.0f} s, not {wanted}", log=tuple(seen["log"]) if seen else ())


def stop_attempt(host: Host, run_id: str, attempt: int, timeout: float) -> records.Status:
    """Ask the engine to save at the next step boundary, seal and exit; its last status, once its process is gone. One
    that has ended already is left alone. LaunchError where it died of it, or still runs after ``timeout`` seconds."""
    host.call("runs.run_state.signal", root=host.root, run_id=run_id, attempt=attempt, name="SIGTERM")
    status = wait_state(host, run_id, attempt, records.ENDED, timeout)
    wait_exited(host, run_id, attempt)
    return status


def wait_exited(host: Host, run_id: str, attempt: int, timeout: float = GONE_WITHIN) -> None:
    """Until the attempt's process is gone: one that has said `stopped` still takes a moment to end. LaunchError where
    it stays."""
    deadline = Deadline(timeout, REACHING_STEP)
    while (seen := look(host, run_id, attempt))["running"] or is_supervised(seen):
        if deadline.count():
            raise LaunchError(f"attempt {attempt} of {run_id} on {host.name} does not end", "look at the host")
        time.sleep(POLL)


def kill_attempt(host: Host, run_id: str, attempt: int, timeout: float = 30.0) -> bool:
    """End the engine at once; nothing is saved. For a rollback, once it did not stop by itself. Returns once it is
    gone; False where it was not there. LaunchError where it is not gone after ``timeout`` seconds."""
    if not host.call("runs.run_state.signal", root=host.root, run_id=run_id, attempt=attempt, name="SIGKILL"):
        return False
    wait_exited(host, run_id, attempt, timeout)
    return True
