"""Start a run on a target, whatever it is made of: one host, several that form one mesh, an allocation of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from midstream.errors import HostError
from midstream.fleet.fleet import Fleet, Target
from midstream.hosts.host import Host
from midstream.hosts.host_pool import Hosts
from midstream.launch import slurm_job
from midstream.launch.attempt_monitor import kill_ranks
from midstream.launch.bundle import install_engine
from midstream.launch.environment import prepare_environment
from midstream.launch.errors import LaunchError
from midstream.launch.rendezvous import check_numbers, meet, places
from midstream.launch.start_attempt import Attempt, Launch, Prepared, ProcessPlace, Rank, start_attempt, start_process

AT_ONCE = 32  # hosts that are worked on at the same time
CLAIMS = 5  # tries to agree on one attempt number


def prepare_target(
    hosts: Hosts, fleet: Fleet, target: Target, say: Callable[[str], None] | None = None
) -> dict[str, Prepared]:
    """Put engine and environment on every host of the target, all at once; by host. LaunchError, HostError."""
    say = say or (lambda line: None)

    def prepare(name: str) -> Prepared:
        host, config = hosts.get(name), fleet.hosts[name]
        engine = install_engine(host)
        say(f"engine {engine.digest[:12]} in {name}:{engine.directory}")
        environment = prepare_environment(host, config, say)
        say(f"{name}: {environment.python} ({environment.how})")
        return Prepared(engine, environment)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(target.hosts, pool.map(prepare, target.hosts), strict=True))


def start(
    hosts: Hosts,
    fleet: Fleet,
    target: Target,
    launch: Launch,
    prepared: Mapping[str, Prepared] | None = None,
) -> Attempt:
    """Claim the run's next attempt on the target and start it there, on all hosts together. Where hosts share no file
    system, what the order and the config name has to lie on each. Where one process cannot be started, those that could
    are ended again. LaunchError naming the host; HostError."""
    prepared = prepared or prepare_target(hosts, fleet, target)
    first, config = hosts.get(target.hosts[0]), fleet.hosts[target.hosts[0]]
    if target.slurm is not None:
        return slurm_job.submit(first, config, target.slurm, launch, prepared[first.name])
    if len(target.hosts) == 1:
        return start_attempt(first, config, launch, prepared[first.name])
    members = [hosts.get(name) for name in target.hosts]
    if target.tpu is not None:
        check_numbers(members)
    homes = run_directories_of(target, members)
    number = _claim(homes, launch.run_id, launch.at_least)
    # The workers of a slice know each other: jax asks their metadata server.
    known = target.tpu is not None and config.devices is None
    coordinator = "" if known else meet(first, members[1:], config.internal_address, target.ports)

    def start_one(process: int) -> Attempt:
        member = members[process]
        quiet = _quiet_proxies(fleet.hosts[member.name], coordinator)
        place = ProcessPlace(process, target.hosts, coordinator)
        return start_process(member, quiet, launch, number, prepared[member.name], place)

    ranks = tuple(Rank(process, name) for process, name in enumerate(target.hosts))
    try:
        # Process 0 first: with one directory for all, it is the one whose order and config are written.
        attempt = start_one(0)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(start_one, range(1, len(members))))
    except HostError:
        kill_ranks(hosts, ranks, launch.run_id, number)
        raise
    return attempt


def run_directories_of(target: Target, members: Sequence[Host]) -> list[Host]:
    """Of hosts that share a file system the first: where a run on the target has its directories. LaunchError where a
    root is called shared and is not."""
    homes = [place[0] for place in places(members)]
    if len(homes) > 1 and target.shared_root:
        first, apart = members[0], ", ".join(home.name for home in homes[1:])
        raise LaunchError(
            f"{apart} does not see {first.name}:{first.root}: shared_root of {target.name} is not shared",
            "mount it there, or take shared_root out: then everything is copied to each host",
        )
    return homes


def _claim(homes: Sequence[Host], run_id: str, at_least: int) -> int:
    """One attempt number on all of them. What was claimed in vain is given back."""
    for _ in range(CLAIMS):
        numbers = [
            host.call("runs.run_state.claim_attempt", root=host.root, run_id=run_id, at_least=at_least)
            for host in homes
        ]
        if len(set(numbers)) == 1:
            return numbers[0]
        for host, number in zip(homes, numbers, strict=True):
            host.call("runs.attempts.give_back", root=host.root, run_id=run_id, number=number)
        at_least = max(numbers)
    raise LaunchError(f"the hosts cannot agree on an attempt of {run_id}: others claim them", "try again")


def _quiet_proxies(config: Any, coordinator: str) -> Any:
    """gRPC would look for the coordinator through a host's HTTP proxy."""
    if not coordinator:
        return config
    address = coordinator.rpartition(":")[0].strip("[]")
    return replace(config, env={"no_grpc_proxy": address, **config.env})
