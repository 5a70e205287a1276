"""Start an attempt of a run, or one process of it, on one host."""

from __future__ import annotations

from dataclasses import dataclass

from midstream.fleet.fleet import HostConfig
from midstream.hosts.container_command import in_container
from midstream.hosts.host import Host
from midstream.install.bundle import EngineInstall
from midstream.install.environment import Environment
from midstream.launch.engine_secrets import read_secrets
from midstream_core import records
from midstream_host.runs import attempts, run_state
from midstream_host.runs.attempt_secrets import secrets_file
from midstream_host.runs.attempts import RUN_DIRECTORY

MODULE = "midstream_engine.train"
DRIVER = "midstream_host.drive"  # in the place of the engine, for a run of another trainer
SUPERVISOR = "midstream_host.supervise"
ANY = -1  # a rank's number if only its host has the list of processes


@dataclass(frozen=True)
class Rank:
    """One process of an attempt: its number and its host."""

    process: int
    host: str


@dataclass(frozen=True)
class Attempt:
    """An engine that was started.

    Attributes:
        host: Host of process 0.
        run_id: The run.
        number: The attempt's number.
        process: Identity of the engine's supervisor on ``host``.
        ranks: One for each host of the target.
    """

    host: str
    run_id: str
    number: int
    process: records.ProcessIdentity
    ranks: tuple[Rank, ...] = ()


@dataclass(frozen=True)
class Launch:
    """Inputs of an attempt's start, on any kind of target.

    Attributes:
        run_id: The run.
        target: Name of the target in the fleet file.
        epoch: Epoch under which the attempt commits.
        command: A command that is stored before the engine starts.
        overrides: Flags for the engine.
        config_text: Becomes run.yaml if the run has none.
        at_least: Lowest number that the attempt may get.
    """

    run_id: str
    target: str
    epoch: int = 1
    command: records.Command | None = None
    overrides: tuple[str, ...] = ()
    config_text: str | None = None
    at_least: int = 1


@dataclass(frozen=True)
class Prepared:
    """The installed engine and environment of one host.

    ``driver``: for a run of another trainer, the interpreter of the engine's driver; ``environment`` is the trainer's.
    """

    engine: EngineInstall
    environment: Environment
    driver: str = ""


@dataclass(frozen=True)
class ProcessPosition:
    """The number of a process in an attempt, and its peers.

    ``coordinator`` is HOST:PORT of process 0, empty if jax finds it itself (on the workers of a TPU slice).
    """

    process: int
    hosts: tuple[str, ...]
    coordinator: str

    @property
    def flags(self) -> tuple[str, ...]:
        """The engine's flags."""
        if not self.coordinator:
            return ("--trainer.distributed.initialize_jax_distributed", "true")
        names = {
            "coordinator_address": self.coordinator,
            "num_processes": str(len(self.hosts)),
            "process_id": str(self.process),
        }
        return tuple(word for name, value in names.items() for word in (f"--trainer.distributed.{name}", value))

    @property
    def driver_flags(self) -> tuple[str, ...]:
        """The same for the driver of another trainer."""
        master, _, port = self.coordinator.rpartition(":")
        return ("--node", str(self.process), "--master", master.strip("[]"), "--port", port)


def start_attempt(host: Host, config: HostConfig, launch: Launch, prepared: Prepared) -> Attempt:
    """Claim the run's next attempt and start the engine detached from this connection.

    Raises:
        HostError: The host cannot be reached, or cannot start the engine.
    """
    number = host.call(run_state.claim_attempt)(root=host.root, run_id=launch.run_id, at_least=launch.at_least)
    return start_process(host, config, launch, number, prepared)


def start_process(
    host: Host,
    config: HostConfig,
    launch: Launch,
    number: int,
    prepared: Prepared,
    position: ProcessPosition | None = None,
) -> Attempt:
    """Start one process of an attempt that was claimed.

    Args:
        host: Host of the process.
        config: The host's entry in the fleet file.
        launch: What the attempt is started with.
        number: The attempt's number.
        prepared: Engine and environment of the host.
        position: Number of the process and its peers; None if it is the only one.
    """
    process, run_id = position.process if position else 0, launch.run_id
    python = prepared.driver or prepared.environment.python
    if prepared.driver:
        program = driver_command(prepared.driver, prepared.environment.python)
        peers = position.driver_flags if position else ()
    else:
        program, peers = engine_command(host.root, python, run_id), position.flags if position else ()
    env = {
        **engine_environment(host.root, config, prepared.engine.directory, launch, number),
        "MIDSTREAM_HOST": host.name,
        RUN_DIRECTORY: records.RunPaths(host.root, run_id).dir,
    }
    argv = [
        *supervised(host.root, config, python, run_id, number, str(process), "-s" if prepared.driver else "-P"),
        *program,
        *peers,
        *launch.overrides,
    ]
    identity = host.call(attempts.start)(
        root=host.root,
        run_id=run_id,
        number=number,
        argv=in_container(config.container, argv, root=host.root, variables=env),
        env=env,
        setup=list(config.setup),
        config=launch.config_text,
        command=None if launch.command is None else launch.command.to_json(),
        process=process,
        group=list(position.hosts) if position else [],
        secrets=read_secrets(host.name, config),
        epoch=launch.epoch,
    )
    ranks = tuple(Rank(index, name) for index, name in enumerate(position.hosts)) if position else (Rank(0, host.name),)
    return Attempt(host.name, run_id, number, identity, ranks)


def supervised(
    root: str, config: HostConfig, python: str, run_id: str, number: int, process: str, isolated: str = "-P"
) -> list[str]:
    """Return the supervisor's command line, which the engine's command line follows.

    Args:
        root: midstream's directory on the host.
        config: The host's entry in the fleet file.
        python: Interpreter.
        run_id: The run.
        number: The attempt's number.
        process: Number of the process, or the variable that has it in a job (``$NAME``).
        isolated: Flag of the interpreter; before Python 3.11 there is no ``-P``.
    """
    paths = records.RunPaths(root, run_id)
    words = [python, isolated, "-m", SUPERVISOR, "--attempt", paths.attempt(number).dir, "--process", process]
    if config.secrets:
        if process.isdecimal():
            words += ["--secrets", secrets_file(root, run_id, number, process)]
        else:  # a requeued job starts again
            words += ["--secrets", secrets_file(root, run_id, number), "--keep-secrets"]
    if config.stall_timeout is not None:
        words += ["--stall-timeout", str(config.stall_timeout)]
    return [*words, "--"]


def engine_command(root: str, python: str, run_id: str) -> list[str]:
    """Return the engine's command line, without overrides and its peers' flags."""
    paths = records.RunPaths(root, run_id)
    flags = ("--config_path", paths.config, "--trainer.id", run_id, "--trainer.root", root)
    return [python, "-P", "-m", MODULE, *flags]


def driver_command(driver: str, python: str) -> list[str]:
    """Return the command line of the driver, without further flags.

    The driver starts another trainer with ``python``.
    """
    return [driver, "-s", "-m", DRIVER, "--python", python]


def engine_environment(root: str, config: HostConfig, engine: str, launch: Launch, number: int) -> dict[str, str]:
    """Return the variables that are added to the engine's environment.

    The fleet file's ``env:`` may set any variable that midstream does not set itself.

    Args:
        root: Root directory of the host.
        config: The host's entry in the fleet file.
        engine: Directory of the installed engine.
        launch: Inputs of the attempt's start.
        number: Number of the attempt.
    """
    own = dict(config.env)
    env = {
        "PYTHONUNBUFFERED": "1",
        **own,
        "PYTHONSAFEPATH": "1",  # for programs that the engine starts
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
