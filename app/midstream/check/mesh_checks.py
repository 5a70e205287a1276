"""Checks of hosts as one mesh: links, hardware, packages, clocks, file systems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from midstream.check.check_result import FAIL, PASS, WARN, Check, judge
from midstream.fleet.fleet import Fleet, HostConfig, Target
from midstream.hosts.host import Host
from midstream.install.errors import LaunchError
from midstream.install.variant import choose_variant
from midstream.launch.host_links import all_links, check_numbers, hosts_apart
from midstream_host.machine.checks import Survey

MAX_CLOCK_SPREAD = 2.0  # seconds between two clocks of one mesh


def check_together(
    fleet: Fleet,
    target: Target,
    hosts: Sequence[Host],
    surveys: Mapping[str, Survey],
    skews: Mapping[str, float],
) -> Iterator[Check]:
    """Yield the checks of a target with at least two hosts, all of which answer.

    Args:
        fleet: The fleet.
        target: The target.
        hosts: Connections to the fleet's hosts.
        surveys: Surveys of its hosts, by host.
        skews: Clock of each host minus this machine's, in seconds, by host.
    """
    yield from _links(fleet, target, hosts)
    yield from _alike(fleet, hosts, surveys)
    spread = max(skews.values()) - min(skews.values())
    hint = "timedatectl set-ntp true on all of them"
    yield judge("clocks agree", spread <= MAX_CLOCK_SPREAD, f"within {spread * 1000:.0f} ms", hint, otherwise=WARN)
    yield _shared(target, hosts)
    if target.describes_itself:
        yield _numbered(hosts)


def _links(fleet: Fleet, target: Target, hosts: Sequence[Host]) -> Iterator[Check]:
    internal = {host.name: fleet.hosts[host.name].internal_address for host in hosts}
    try:
        links = all_links(hosts, internal, target.ports)
    except LaunchError as error:
        yield Check("ports between hosts", FAIL, error.message, error.hint)
        return
    closed = [link for link in links if not link.open]
    for link in closed:
        tried = "; ".join(f"{address}: {why}" for address, why in (link.tried or {}).items())
        yield Check(
            "ports between hosts",
            FAIL,
            f"{link.source} does not reach {link.target} ({tried})",
            f"open the ports between them; internal_address: of {link.target}, or ports: of {target.name}",
        )
    if not closed:
        slowest = max(links, key=lambda link: link.seconds)
        words = f"all {len(links)} links are open; the slowest: {slowest.source} to {slowest.target}"
        words += f", {slowest.seconds * 1000:.1f} ms"
        yield Check("ports between hosts", PASS, words)


def _alike(fleet: Fleet, hosts: Sequence[Host], surveys: Mapping[str, Survey]) -> Iterator[Check]:
    """Check that all hosts have equal accelerators, driver and packages.

    One program runs on all of them.
    """
    descriptions = {host.name: _described(fleet.hosts[host.name], surveys[host.name]) for host in hosts}
    for name in ("accelerators", "driver", "packages", "machine"):
        values = {host: described[name] for host, described in descriptions.items()}
        same = len(set(values.values())) == 1
        words = next(iter(values.values())) if same else ", ".join(f"{host}: {value}" for host, value in values.items())
        hard = FAIL if name == "accelerators" else WARN
        yield judge(f"same {name}", same, words, "the hosts of one target have to be equal", otherwise=hard)


def _described(config: HostConfig, survey: Survey) -> dict[str, str]:
    accelerators = survey.accelerators
    kinds = accelerators.gpus or accelerators.tpus
    if config.devices is not None:
        kinds = ["virtual CPU device"] * config.devices
    try:
        variant = choose_variant("", config, accelerators).name
    except LaunchError as error:
        variant = f"none ({error.message.removeprefix(': ')})"
    return {
        "accelerators": ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds)) or "none",
        "driver": accelerators.driver or "none",
        "packages": config.python or variant,
        "machine": f"{survey.facts.machine}, {survey.facts.libc}",
    }


def _numbered(hosts: Sequence[Host]) -> Check:
    try:
        check_numbers(hosts)
    except LaunchError as error:
        return Check("worker numbers", FAIL, error.message, error.hint)
    return Check("worker numbers", PASS, "as in the list of the TPU service")


def _shared(target: Target, hosts: Sequence[Host]) -> Check:
    try:
        apart = hosts_apart(hosts)
    except OSError as error:
        return Check("shared file system", WARN, str(error))
    if not apart:
        return Check("shared file system", PASS, f"all share {hosts[0].root}")
    if target.shared_root:
        words = f"{', '.join(apart)} does not share {hosts[0].name}:{target.shared_root}"
        return Check("shared file system", FAIL, words, "mount it there, or remove shared_root")
    words = f"none under {hosts[0].root}: what is needed is copied to each host"
    return Check("shared file system", PASS, words)
