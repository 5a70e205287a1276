"""Start a run on a target, whatever it is made of: one host, several that form one mesh, an allocation of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from midstream.errors import HostError
from midstream.fleet.config import Fleet, Target
from midstream.hosts.base import Host
from midstream.hosts.open import Hosts
from midstream.launch import slurm
from midstream.launch.bundle import EngineInstall, install_engine
from midstream.launch.environment import Environment, prepare_environment
from midstream.launch.errors import LaunchError
from midstream.launch.follow import kill_ranks
from midstream.launch.rendezvous import check_numbers, meet, share_root
from midstream.launch.start import Attempt, Place, Rank, start_attempt, start_process
from midstream_engine import records

AT_ONCE = 32  # hosts that are worked on at the same time
CLAIMS = 5  # tries to agree on one attempt number

Bring = Callable[[Host, Host, str], None]


@dataclass(frozen=True)
class Prepared:
    """Engine and environment on one host."""

    engine: EngineInstall
    environment: Environment


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
    *,
    run_id: str,
    epoch: int,
    order: records.Order | None = None,
    overrides: Sequence[str] = (),
    config_text: str | None = None,
    at_least: int = 1,
    prepared: Mapping[str, Prepared] | None = None,
    bring: Bring | None = None,
) -> Attempt:
    """Claim the run's next attempt on the target and start it there, on all hosts together.

    Hosts of a group that share no file system need the checkpoint each: ``bring(from, to, directory)`` copies what the
    order names from the first host. Where one process cannot be started, those that could are ended again.
    LaunchError naming the host; HostError."""
    prepared = prepared or prepare_target(hosts, fleet, target)
    first, config = hosts.get(target.hosts[0]), fleet.hosts[target.hosts[0]]
    ready = prepared[first.name]
    words: dict[str, Any] = {
        "target": target.name,
        "run_id": run_id,
        "epoch": epoch,
        "order": order,
        "overrides": overrides,
        "config_text": config_text,
    }
    if target.slurm is not None:
        return slurm.submit(
            first, config, target.slurm, engine=ready.engine, environment=ready.environment, at_least=at_least, **words
        )
    if len(target.hosts) == 1:
        return start_attempt(
            first, config, engine=ready.engine, environment=ready.environment, at_least=at_least, **words
        )
    members = [hosts.get(name) for name in target.hosts]
    if target.tpu is not None:
        check_numbers(members)
    apart = share_root(members)
    if apart and target.shared_root:
        raise LaunchError(
            f"{', '.join(apart)} does not see {first.name}:{first.root}: shared_root of {target.name} is not shared",
            "mount it there, or take shared_root out: then everything is copied to each host",
        )
    homes = members if apart else [first]
    if order is not None and order.checkpoint and bring is not None:
        for member in homes[1:]:
            bring(first, member, records.RunPaths(first.root, run_id).checkpoint(order.checkpoint))
    number = _claim(homes, run_id, at_least)
    # The workers of a slice know each other: jax asks their metadata server.
    known = target.tpu is not None and config.devices is None
    coordinator = "" if known else meet(first, members[1:], config.internal_address, target.ports)

    def start_one(process: int) -> Attempt:
        member = members[process]
        place = Place(process, target.hosts, coordinator)
        done = prepared[member.name]
        return start_process(
            member,
            _quiet_proxies(fleet.hosts[member.name], coordinator),
            number=number,
            engine=done.engine,
            environment=done.environment,
            place=place,
            **words,
        )

    ranks = tuple(Rank(process, name) for process, name in enumerate(target.hosts))
    try:
        # Process 0 first: with one directory for all, it is the one whose order and config are written.
        attempt = start_one(0)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(start_one, range(1, len(members))))
    except HostError:
        kill_ranks(hosts, [rank for rank in ranks if rank.host in target.hosts], run_id, number)
        raise
    return attempt


def _claim(homes: Sequence[Host], run_id: str, at_least: int) -> int:
    """One attempt number on all of them. What was claimed in vain is given back."""
    for _ in range(CLAIMS):
        numbers = [host.call("runs.claim_attempt", root=host.root, run_id=run_id, at_least=at_least) for host in homes]
        if len(set(numbers)) == 1:
            return numbers[0]
        for host, number in zip(homes, numbers, strict=True):
            host.call("engine.give_back", root=host.root, run_id=run_id, number=number)
        at_least = max(numbers)
    raise LaunchError(f"the hosts cannot agree on an attempt of {run_id}: others claim them", "try again")


def _quiet_proxies(config: Any, coordinator: str) -> Any:
    """gRPC would look for the coordinator through a host's HTTP proxy."""
    if not coordinator:
        return config
    address = coordinator.rpartition(":")[0].strip("[]")
    return replace(config, env={"no_grpc_proxy": address, **config.env})
