"""Start of a run on a target: one host, several of one mesh, or a cluster's job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from midstream.fleet.fleet import HostConfig, Target
from midstream.hosts.container_host import engine_host
from midstream.hosts.host import Host
from midstream.hosts.host_pool import HostPool
from midstream.install.bundle import install_engine
from midstream.install.environment import prepare_environment
from midstream.install.errors import LaunchError
from midstream.install.reporter import reporter_of
from midstream.install.trainer_environment import prepare_trainer_environment
from midstream.launch import slurm_job
from midstream.launch.attempt_monitor import kill_ranks
from midstream.launch.host_links import check_numbers, group_by_file_system, meet
from midstream.launch.process_lease import wait_for_lease
from midstream.launch.start_attempt import (
    Attempt,
    Launch,
    Prepared,
    ProcessPosition,
    Rank,
    start_attempt,
    start_process,
)
from midstream_core import records
from midstream_host.driver.run_file import RunFile
from midstream_host.runs import attempts, run_state

CONCURRENCY = 32  # hosts that are prepared at the same time
MAX_CLAIMS = 5  # tries to claim the same attempt number on all hosts


def prepare_target(
    hosts: HostPool,
    target: Target,
    say: Callable[[str], None] | None = None,
    trainer: RunFile | None = None,
) -> dict[str, Prepared]:
    """Install engine and environment on all hosts of the target; return them by host.

    The hosts are prepared concurrently.

    Args:
        hosts: Connections to the fleet's hosts.
        target: The target.
        say: Receives the progress; a function is called with sparse lines.
        trainer: Another trainer whose run this is; None: the run is midstream's own.

    Raises:
        LaunchError: They cannot be installed on a host.
        HostError: A host cannot be reached.
    """
    report = reporter_of(say)

    def prepare(name: str) -> Prepared:
        host, config = hosts.get(name), hosts.fleet.config_of(target, name)
        engine = install_engine(host)
        report(f"engine {engine.digest[:12]} in {name}:{engine.directory}")
        if trainer is None:
            environment, driver = prepare_environment(host, config, report), ""
        else:
            environment = prepare_trainer_environment(host, config, trainer, report)
            driver = engine_host(host, config).remote_python
        report(f"{name}: {environment.python} ({environment.how})")
        return Prepared(engine, environment, driver)

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        return dict(zip(target.hosts, pool.map(prepare, target.hosts), strict=True))


def start(
    hosts: HostPool,
    target: Target,
    launch: Launch,
    prepared: Mapping[str, Prepared] | None = None,
    say: Callable[[str], None] | None = None,
) -> Attempt:
    """Claim the run's next attempt on the target and start its processes on all hosts.

    If the hosts share no file system, each needs its own copy of the files that the command and the config name. If
    one process cannot be started, the others are killed.

    Args:
        hosts: Connections to the fleet's hosts.
        target: The target.
        launch: Inputs of the attempt's start.
        prepared: Result of `prepare_target`, by host; None: it is called here.
        say: Receives what the start waits for.

    Raises:
        LaunchError: A process cannot be started; the message names the host.
        HostError: A host cannot be reached.
    """
    prepared = prepared or prepare_target(hosts, target)
    first, config = hosts.get(target.hosts[0]), hosts.fleet.config_of(target, target.hosts[0])
    if launch.command is None or launch.command.action not in (records.STANDBY, records.REPLAY):
        for name in target.hosts:
            wait_for_lease(hosts.get(name), launch.run_id, reporter_of(say))
    if target.slurm is not None:
        if short := slurm_job.short_limit(target.slurm.sbatch, None):
            reporter_of(say)(f"the job of {target.name}: {short}")
        return slurm_job.submit(first, config, target.slurm, launch, prepared[first.name])
    if len(target.hosts) == 1:
        return start_attempt(first, config, launch, prepared[first.name])
    members = [hosts.get(name) for name in target.hosts]
    if target.describes_itself:
        check_numbers(members)
    directory_hosts = run_directories_of(target, members)
    number = _claim(directory_hosts, launch.run_id, launch.at_least)
    # jax finds the workers of a slice through their metadata server.
    has_metadata = target.describes_itself and config.devices is None
    coordinator = "" if has_metadata else meet(first, members[1:], config.internal_address, target.ports)

    def start_one(process: int) -> Attempt:
        member = members[process]
        quiet = _quiet_proxies(hosts.fleet.config_of(target, member.name), coordinator)
        position = ProcessPosition(process, target.hosts, coordinator)
        return start_process(member, quiet, launch, number, prepared[member.name], position)

    ranks = tuple(Rank(process, name) for process, name in enumerate(target.hosts))
    try:
        # Process 0 first: if all share one directory, its command and config are the ones that are written.
        attempt = start_one(0)
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            list(pool.map(start_one, range(1, len(members))))
    except BaseException:  # also Ctrl-C: process 0 would hold its devices
        kill_ranks(hosts, ranks, launch.run_id, number)
        raise
    return attempt


def run_directories_of(target: Target, members: Sequence[Host]) -> list[Host]:
    """Return the first host of each file system.

    A run on the target has its directories there.

    Raises:
        LaunchError: The target has ``shared_root``, and its hosts share no file system.
    """
    directory_hosts = [group[0] for group in group_by_file_system(members)]
    if len(directory_hosts) > 1 and target.shared_root:
        first, apart = members[0], ", ".join(host.name for host in directory_hosts[1:])
        raise LaunchError(
            f"{apart} does not share {first.name}:{first.root}, which shared_root of {target.name} says",
            "mount it there, or remove shared_root: then everything is copied to each host",
        )
    return directory_hosts


def _claim(directory_hosts: Sequence[Host], run_id: str, at_least: int) -> int:
    """Claim the same attempt number on all hosts. Numbers that differ are released."""
    for _ in range(MAX_CLAIMS):
        numbers = [
            host.call(run_state.claim_attempt)(root=host.root, run_id=run_id, at_least=at_least)
            for host in directory_hosts
        ]
        if len(set(numbers)) == 1:
            return numbers[0]
        for host, number in zip(directory_hosts, numbers, strict=True):
            host.call(attempts.release_claim)(root=host.root, run_id=run_id, number=number)
        at_least = max(numbers)
    raise LaunchError(f"the hosts gave different attempt numbers of {run_id}: another program claims them", "try again")


def _quiet_proxies(config: HostConfig, coordinator: str) -> HostConfig:
    """Exempt the coordinator from the host's HTTP proxy, which gRPC would use."""
    if not coordinator:
        return config
    address = coordinator.rpartition(":")[0].strip("[]")
    return replace(config, env={"no_grpc_proxy": address, **config.env})
