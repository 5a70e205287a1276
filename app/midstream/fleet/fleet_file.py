"""Reader and validation of the fleet file.

Errors are one line with file and line, or file and field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import draccus
import yaml

from midstream.errors import UsageError
from midstream.fleet import store_config
from midstream.fleet.chosen_devices import take_devices
from midstream.fleet.container_config import ContainerConfig, check_container
from midstream.fleet.field_types import wrong_field
from midstream.fleet.fleet import (
    COPY_ROUTES,
    DEFAULT_ROOT,
    VARIANTS,
    Fleet,
    GoogleConfig,
    HostConfig,
    HostsTarget,
    KubernetesHostConfig,
    KubernetesTarget,
    SlurmTarget,
    SshHostConfig,
)
from midstream.fleet.fleet_path import fleet_path
from midstream.fleet.fleet_yaml import load_yaml
from midstream.fleet.notify_config import NotifyConfig, check_notify
from midstream.fleet.quantities import check_price, parse_duration, parse_ports, parse_rate
from midstream.fleet.sbatch_flags import sbatch_flags
from midstream.fleet.slice_target import SliceTarget, TargetConfig
from midstream.fleet.ssh_address import FORM, split_address
from midstream.fleet.store_config import StoreConfig, check_host_store, check_stores
from midstream.suggestions import nearest
from midstream_core.visible_devices import VISIBLE


@dataclass(frozen=True)
class _FleetFile:
    hosts: dict[str, HostConfig] = field(default_factory=dict)
    targets: dict[str, TargetConfig] = field(default_factory=dict)
    stores: dict[str, StoreConfig] = field(default_factory=dict)
    google: GoogleConfig = field(default_factory=GoogleConfig)
    notify: list[NotifyConfig] = field(default_factory=list)


_PARSED: dict[tuple[str, str], Fleet] = {}  # by path and text: one command reads its file several times


def load_fleet(path: str | Path | None = None) -> Fleet:
    """Load a fleet file.

    Raises:
        UsageError: It is missing or invalid; the message has file and line or field.
    """
    file = fleet_path(path)
    try:
        text = file.read_text()
    except FileNotFoundError:
        init = f"midstream --init{f' --fleet {path}' if path else ''} writes one"
        raise UsageError(f"no fleet file at {file}", f"{init}; midstream --demo needs none") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error
    key = str(file), text
    if key not in _PARSED:
        fleet = parse_fleet(text, str(file))
        if fleet.has_pods:  # manifests beside the file may have changed
            return fleet
        _PARSED[key] = fleet
    return _PARSED[key]


def parse_fleet(text: str, path: str = "") -> Fleet:
    """The fleet of a YAML text; ``path`` is what errors call it."""
    value = _yaml(text, path)
    if not isinstance(value, dict):
        raise UsageError(f"{path}: expected hosts:, targets: and stores:, found {type(value).__name__}")
    _known_keys(path, "", value, ("hosts", "targets", "stores", "google", "on_event", "notify", "operators"))
    on_event = value.get("on_event")
    if on_event is not None and not isinstance(on_event, str):
        raise UsageError(f"{path}: on_event is {type(on_event).__name__}", "one command line: on_event: notify-me")
    receivers = value.get("notify") or []
    if not isinstance(receivers, list) or not all(isinstance(receiver, dict) for receiver in receivers):
        raise UsageError(f"{path}: notify is no list of receivers", "notify: [{type: slack, url: env:SLACK_URL}]")
    for index, receiver in enumerate(receivers):
        _known_keys(path, f"notify[{index}].", receiver, [field.name for field in dataclasses.fields(NotifyConfig)])
    hosts = _section(path, value, "hosts")
    targets = _section(path, value, "targets")
    stores = _section(path, value, "stores")
    for name, entry in stores.items():
        _known_keys(path, f"stores.{name}.", entry, [field.name for field in dataclasses.fields(StoreConfig)])
    google = value.get("google") or {}
    if isinstance(google, dict):
        _known_keys(path, "google.", google, ("projects", "zones"))
    _check_entries(path, "hosts", hosts, HostConfig)
    for name, entry in hosts.items():
        take_devices(f"{path}: hosts.{name}", entry)
    _check_entries(path, "targets", targets, TargetConfig)
    for name, entry in targets.items():
        if isinstance(entry.get("worker"), dict):
            entry["worker"] = dict(entry["worker"])
            take_devices(f"{path}: targets.{name}.worker", entry["worker"])
    try:
        sections = {"hosts": hosts, "targets": targets, "stores": stores, "google": google, "notify": receivers}
        decoded = draccus.decode(_FleetFile, sections)
    except draccus.utils.DraccusException as error:
        wrong = wrong_field("hosts", hosts, HostConfig) or wrong_field("targets", targets, TargetConfig)
        what, hint = wrong or (_one_line(error), "")
        raise UsageError(f"{path}: {what}", hint) from error
    for name, target in decoded.targets.items():
        _check_target(path, name, target, decoded.hosts)
        if isinstance(target, SliceTarget):
            check_host_store(f"{path}: targets.{name}.worker", target.worker.get("store"), decoded.stores)
    check_stores(path, decoded.stores)
    if decoded.notify:
        from midstream.json_events.notifications import NOTIFICATIONS

        check_notify(path, decoded.notify, tuple(NOTIFICATIONS))
    _add_pods(path, decoded)
    for name, host in decoded.hosts.items():
        _check_host(path, name, host, decoded.stores)
    return Fleet(
        _with_store_settings(_shared_roots(path, decoded), decoded.stores),
        decoded.targets,
        decoded.stores,
        google=decoded.google,
        path=path,
        text=text,
        on_event=on_event,
        notify=tuple(decoded.notify),
        operators=_operators(path, value.get("operators")),
    )


def _operators(path: str, value: Any) -> tuple[str, ...]:
    """Return the public keys of ``operators:``, without their comments."""
    if value is None:
        return ()
    from midstream.fleet.operator_keys import check_public_key  # the terminal UI shows its first frame without it

    hint = "operators: [ssh-ed25519 AAAA...]; midstream --doctor prints an operator's key"
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{path}: operators is no list of keys", hint)
    try:
        return tuple(map(check_public_key, value))
    except ValueError as error:
        raise UsageError(f"{path}: operators: {error}", hint) from None


def _add_pods(path: str, file: _FleetFile) -> None:
    """Add the pods of Kubernetes targets to the hosts."""
    for name, target in file.targets.items():
        if not isinstance(target, KubernetesTarget):
            continue
        from midstream.fleet.job_pods import pod_hosts

        for pod, config in pod_hosts(path, name, target).items():
            if pod in file.hosts:
                raise UsageError(f"{path}: hosts.{pod} is also a pod of targets.{name}", "another name for the target")
            file.hosts[pod] = config


def _check_host(path: str, name: str, host: HostConfig, stores: Mapping[str, StoreConfig]) -> None:
    check_host_store(f"{path}: hosts.{name}", host.store, stores)
    check_price(f"{path}: hosts.{name}", host.price_per_hour)
    if isinstance(host, SshHostConfig):
        if not host.address:
            raise UsageError(f"{path}: hosts.{name} has no address", f"address: {FORM}")
        split_address(host.address, f"{path}: hosts.{name}.address")
    if isinstance(host, KubernetesHostConfig):
        if bool(host.pod) == bool(host.selector):
            raise UsageError(f"{path}: hosts.{name} needs pod: or selector:", "one of them: pod: train-0")
        for field_name in ("pod", "selector", "pod_container", "context", "namespace"):
            if str(getattr(host, field_name) or "").startswith("-"):
                raise UsageError(f"{path}: hosts.{name}.{field_name} begins with a dash", "a name")
        if host.container is not None:
            raise UsageError(f"{path}: hosts.{name} is a pod with a container: of its own", "pod_container: its name")
    for secret, source in host.secrets.items():
        if not source.startswith(("env:", "file:")):
            raise UsageError(
                f"{path}: hosts.{name}.secrets.{secret} is neither env: nor file:",
                "its source on this machine, never the secret itself: env:NAME or file:PATH",
            )
    if host.variant is not None and host.variant not in VARIANTS:
        raise UsageError(f"{path}: hosts.{name}.variant is {host.variant!r}", nearest(host.variant, VARIANTS))
    if host.copy_route not in (None, *COPY_ROUTES):
        raise UsageError(f"{path}: hosts.{name}.copy_route is {host.copy_route!r}", ", ".join(COPY_ROUTES))
    for field_name, parse in (("bandwidth_limit", parse_rate), ("copy_ports", parse_ports)):
        given = getattr(host, field_name)
        try:
            _ = None if given is None else parse(given)
        except UsageError as error:
            raise UsageError(f"{path}: hosts.{name}.{field_name}: {error.message}", error.hint) from error
    check_container(f"{path}: hosts.{name}", host.container, slurm=False)
    if host.devices is not None and host.devices < 1:
        raise UsageError(f"{path}: hosts.{name}.devices is {host.devices}", "1 or more virtual CPU devices, or null")


REFUSED_FLAGS = {
    "array": "an attempt is one job: --nodes=N",
    "wait": "sbatch would return when the job has ended",
}
SAVING_SIGNALS = ("TERM", "INT", "HUP", "USR1", "15", "2", "1", "10")  # on which the engine saves


def _check_slurm(path: str, name: str, target: SlurmTarget) -> None:
    flags = sbatch_flags(target.sbatch)
    if ":" in target.sbatch:
        hint = "an attempt is one job of one kind of node: sbatch: [--nodes=N, ...]"
        raise UsageError(f"{path}: targets.{name}.sbatch has ':', a heterogeneous job", hint)
    for flag, hint in REFUSED_FLAGS.items():
        if flag in flags:
            raise UsageError(f"{path}: targets.{name}.sbatch has --{flag}", hint)
    if "signal" in flags:
        signal = flags["signal"].rpartition(":")[2].partition("@")[0]
        if signal.upper().removeprefix("SIG") not in SAVING_SIGNALS:
            hint = "it ends the engine without saving: --signal=TERM@SECONDS saves and stops, USR1 saves"
            raise UsageError(f"{path}: targets.{name}.sbatch has --signal of {signal or 'nothing'}", hint)
    try:
        _ = None if target.guard_lead is None else parse_duration(target.guard_lead)
    except UsageError as error:
        raise UsageError(f"{path}: targets.{name}.guard_lead: {error.message}", error.hint) from error


def _check_target(path: str, name: str, target: TargetConfig, known_hosts: Mapping[str, HostConfig]) -> None:
    if isinstance(target, SliceTarget):
        from midstream.fleet.slice_check import check_slice

        check_slice(path, name, target)
        hosts, ports = target.hosts, []
        if not hosts:
            return
    elif isinstance(target, KubernetesTarget):
        hosts, ports = [], target.ports
        if not ports:
            return
    elif isinstance(target, SlurmTarget):
        _check_slurm(path, name, target)
        hosts, ports = [target.host] if target.host else [], target.ports
        if hosts and hosts[0] in known_hosts and known_hosts[hosts[0]].visible is not None:
            what = f"{path}: hosts.{hosts[0]} chooses GPUs, and is the login node of targets.{name}"
            raise UsageError(what, f"SLURM chooses the GPUs of a job: remove devices: and {VISIBLE} there")
    else:
        assert isinstance(target, HostsTarget)
        hosts, ports = target.hosts, target.ports
    if isinstance(target, SlurmTarget | HostsTarget):
        check_container(f"{path}: targets.{name}", target.container, slurm=isinstance(target, SlurmTarget))
    if not hosts and not isinstance(target, KubernetesTarget):
        slurm = isinstance(target, SlurmTarget)
        words = ("names no host", "host: the login node") if slurm else ("names no hosts", "hosts: [a, b]")
        raise UsageError(f"{path}: targets.{name} {words[0]}", words[1])
    for host in hosts:
        if host not in known_hosts:
            raise UsageError(f"{path}: targets.{name} names host {host!r}", nearest(host, tuple(known_hosts)))
    if len({known_hosts[host].store for host in hosts}) > 1:
        raise UsageError(f"{path}: the hosts of targets.{name} have different stores", "one run, one store: for all")
    twice = next((host for host in hosts if hosts.count(host) > 1), None)
    if twice:
        raise UsageError(f"{path}: targets.{name} names host {twice} twice", "one process runs on each host")
    if ports and not (len(ports) == 2 and 0 < ports[0] <= ports[1] < 65536):
        raise UsageError(f"{path}: targets.{name}.ports is {ports}", "the first and the last port: [29400, 29499]")


def _shared_roots(path: str, file: _FleetFile) -> dict[str, HostConfig]:
    """Return the hosts, with the ``shared_root`` of their targets as root."""
    hosts = dict(file.hosts)
    for name, target in file.targets.items():
        if not isinstance(target, HostsTarget) or target.shared_root is None:
            continue
        for host in target.hosts:
            if hosts[host].root not in (DEFAULT_ROOT, target.shared_root):
                raise UsageError(
                    f"{path}: targets.{name}.shared_root is {target.shared_root}, and {host} has {hosts[host].root}",
                    "a host has one root: remove its root:, or name the same directory",
                )
            hosts[host] = dataclasses.replace(hosts[host], root=target.shared_root)
    return hosts


def _with_store_settings(hosts: Mapping[str, HostConfig], stores: Mapping[str, StoreConfig]) -> dict[str, HostConfig]:
    """Return the hosts with the engine's variable for stores in their environment.

    The variable has the settings of the stores.
    """
    added = store_config.engine_environment(stores)
    return {
        name: dataclasses.replace(host, env={**added, **host.env}) if added else host for name, host in hosts.items()
    }


def _yaml(text: str, path: str) -> Any:
    try:
        return load_yaml(text) or {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else path
        raise UsageError(f"{where}: {error.problem or error.context}", "correct the YAML there") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: {_one_line(error)}", "correct the YAML") from error


def _section(path: str, value: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    section = value.get(name) or {}
    if not isinstance(section, dict):
        raise UsageError(f"{path}: {name} is {type(section).__name__}", f"{name}: {{NAME: {{type: ...}}}}")
    for key, entry in section.items():
        if not isinstance(entry, dict):
            raise UsageError(f"{path}: {name}.{key} is {type(entry).__name__}", "{type: ..., ...}")
    return {str(key): dict(entry) for key, entry in section.items()}


def _check_entries(path: str, section: str, entries: Mapping[str, dict[str, Any]], base: Any) -> None:
    """Check types and field names.

    draccus' own messages have neither the file nor the closest name.
    """
    kinds = base.get_known_choices()
    for name, entry in entries.items():
        kind = entry.get("type")
        if kind is None:
            raise UsageError(f"{path}: {section}.{name} has no type", f"type: {' or '.join(kinds)}")
        if kind not in kinds:
            raise UsageError(f"{path}: {section}.{name}.type is {kind!r}", nearest(str(kind), tuple(kinds)))
        fields = tuple(field.name for field in dataclasses.fields(kinds[kind]))
        _known_keys(path, f"{section}.{name}.", entry, ("type", *fields))
        container = entry.get("container")
        if isinstance(container, dict):
            names = [field.name for field in dataclasses.fields(ContainerConfig)]
            _known_keys(path, f"{section}.{name}.container.", container, names)


def _known_keys(path: str, prefix: str, value: Mapping[str, Any], field_names: Sequence[str]) -> None:
    for key in value:
        if key not in field_names:
            raise UsageError(f"{path}: {prefix}{key} is unknown", nearest(str(key), field_names))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
