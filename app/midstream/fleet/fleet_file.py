"""Read and validate the fleet file. Errors are one line with file and line, or file and field."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import draccus
import yaml

from midstream.errors import UsageError
from midstream.fleet import store_config
from midstream.fleet.fleet import (
    COPY_ROUTES,
    DEFAULT_ROOT,
    REACHES,
    VARIANTS,
    Fleet,
    GoogleConfig,
    HostConfig,
    HostsTarget,
    SlurmTarget,
    SshHostConfig,
    TargetConfig,
    TpuTarget,
)
from midstream.fleet.quantities import parse_duration, parse_ports, parse_rate
from midstream.fleet.store_config import StoreConfig, check_host_store, check_stores
from midstream.suggestions import nearest


@dataclass(frozen=True)
class _FleetFile:
    hosts: dict[str, HostConfig] = field(default_factory=dict)
    targets: dict[str, TargetConfig] = field(default_factory=dict)
    stores: dict[str, StoreConfig] = field(default_factory=dict)
    google: GoogleConfig = field(default_factory=GoogleConfig)


def default_fleet_path() -> Path:
    """Return `$MIDSTREAM_FLEET`, by default `~/.config/midstream/fleet.yaml`."""
    return Path(os.environ.get("MIDSTREAM_FLEET") or "~/.config/midstream/fleet.yaml").expanduser()


def load_fleet(path: str | Path | None = None) -> Fleet:
    """Load a fleet file. UsageError, with file and line or field, if it is missing or invalid."""
    file = Path(path).expanduser() if path else default_fleet_path()
    try:
        text = file.read_text()
    except FileNotFoundError:
        raise UsageError(
            f"no fleet file at {file}", "midstream --init writes one; midstream --demo needs none"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error
    return parse_fleet(text, str(file))


def parse_fleet(text: str, path: str = "") -> Fleet:
    """The fleet of a YAML text; ``path`` is what errors call it."""
    value = _yaml(text, path)
    if not isinstance(value, dict):
        raise UsageError(f"{path}: expected hosts:, targets: and stores:, found {type(value).__name__}")
    _known_keys(path, "", value, ("hosts", "targets", "stores", "google", "on_event"))
    on_event = value.get("on_event")
    if on_event is not None and not isinstance(on_event, str):
        raise UsageError(f"{path}: on_event is {type(on_event).__name__}", "one command line: on_event: notify-me")
    hosts = _section(path, value, "hosts")
    targets = _section(path, value, "targets")
    stores = _section(path, value, "stores")
    for name, entry in stores.items():
        _known_keys(path, f"stores.{name}.", entry, [each.name for each in dataclasses.fields(StoreConfig)])
    google = value.get("google") or {}
    if isinstance(google, dict):
        _known_keys(path, "google.", google, ("projects", "zones"))
    _check_entries(path, "hosts", hosts, HostConfig)
    _check_entries(path, "targets", targets, TargetConfig)
    try:
        decoded = draccus.decode(_FleetFile, {"hosts": hosts, "targets": targets, "stores": stores, "google": google})
    except draccus.utils.DraccusException as error:
        raise UsageError(f"{path}: {_one_line(error)}") from error
    for name, target in decoded.targets.items():
        _check_target(path, name, target, decoded.hosts)
        if isinstance(target, TpuTarget):
            check_host_store(f"{path}: targets.{name}.worker", target.worker.get("store"), decoded.stores)
    check_stores(path, decoded.stores)
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
    )


def _check_host(path: str, name: str, host: HostConfig, stores: Mapping[str, StoreConfig]) -> None:
    check_host_store(f"{path}: hosts.{name}", host.store, stores)
    if isinstance(host, SshHostConfig) and not host.address:
        raise UsageError(f"{path}: hosts.{name} has no address", "address: [user@]name[:port]")
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
    if host.devices is not None and host.devices < 1:
        raise UsageError(f"{path}: hosts.{name}.devices is {host.devices}", "1 or more virtual CPU devices, or null")


def _check_target(path: str, name: str, target: TargetConfig, known: Mapping[str, HostConfig]) -> None:
    if isinstance(target, TpuTarget):
        _check_tpu(path, name, target)
        hosts, ports = target.hosts, []
        if not hosts:
            return
    elif isinstance(target, SlurmTarget):
        hosts, ports = [target.host] if target.host else [], target.ports
    else:
        assert isinstance(target, HostsTarget)
        hosts, ports = target.hosts, target.ports
    if not hosts:
        slurm = isinstance(target, SlurmTarget)
        words = ("names no host", "host: the login node") if slurm else ("names no hosts", "hosts: [a, b]")
        raise UsageError(f"{path}: targets.{name} {words[0]}", words[1])
    for host in hosts:
        if host not in known:
            raise UsageError(f"{path}: targets.{name} names host {host!r}", nearest(host, tuple(known)))
    if len({known[host].store for host in hosts}) > 1:
        raise UsageError(f"{path}: the hosts of targets.{name} have different stores", "one run, one store: for all")
    twice = next((host for host in hosts if hosts.count(host) > 1), None)
    if twice:
        raise UsageError(f"{path}: targets.{name} names host {twice} twice", "one process runs on each host")
    if ports and not (len(ports) == 2 and 0 < ports[0] <= ports[1] < 65536):
        raise UsageError(f"{path}: targets.{name}.ports is {ports}", "the first and the last port: [29400, 29499]")


def _check_tpu(path: str, name: str, target: TpuTarget) -> None:
    """Check a TPU target as far as possible without its provider."""
    for field_name in ("project", "zone"):
        if not getattr(target, field_name):
            raise UsageError(f"{path}: targets.{name} has no {field_name}", f"{field_name}: where the slice is")
    if target.create and not (target.accelerator_type and target.runtime_version):
        hint = "accelerator_type: v3-32 and runtime_version: tpu-ubuntu2204-base: docs/reference/fleet-file.md"
        raise UsageError(f"{path}: targets.{name} has create: true and lacks accelerator_type or runtime_version", hint)
    if target.spot and (target.reserved or target.reservation):
        raise UsageError(f"{path}: targets.{name} is spot and reserved", "one of them")
    if target.reservation and not target.queued:
        hint = "queued: true, the only way to name one; or reserved: true alone, for any reservation of the project"
        raise UsageError(f"{path}: targets.{name} names a reservation, and is not queued", hint)
    if target.reach not in REACHES:
        raise UsageError(f"{path}: targets.{name}.reach is {target.reach!r}", nearest(target.reach, REACHES))
    try:
        parse_duration(target.valid_until)
    except UsageError as error:
        raise UsageError(f"{path}: targets.{name}.valid_until: {error.message}", error.hint) from error
    _known_keys(path, f"targets.{name}.worker.", target.worker, [each.name for each in dataclasses.fields(HostConfig)])


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


def _with_store_settings(hosts: Mapping[str, HostConfig], known: Mapping[str, StoreConfig]) -> dict[str, HostConfig]:
    """Return the hosts with the engine's variable for the settings of stores in their environment."""
    added = store_config.engine_environment(known)
    return {
        name: dataclasses.replace(host, env={**added, **host.env}) if added else host for name, host in hosts.items()
    }


def _yaml(text: str, path: str) -> Any:
    try:
        return yaml.safe_load(text) or {}
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
    """Check types and field names. draccus' own messages have neither the file nor the closest name."""
    kinds = base.get_known_choices()
    for name, entry in entries.items():
        kind = entry.get("type")
        if kind is None:
            raise UsageError(f"{path}: {section}.{name} has no type", f"type: {' or '.join(kinds)}")
        if kind not in kinds:
            raise UsageError(f"{path}: {section}.{name}.type is {kind!r}", nearest(str(kind), tuple(kinds)))
        fields = tuple(each.name for each in dataclasses.fields(kinds[kind]))
        _known_keys(path, f"{section}.{name}.", entry, ("type", *fields))


def _known_keys(path: str, prefix: str, value: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in value:
        if key not in known:
            raise UsageError(f"{path}: {prefix}{key} is unknown", nearest(str(key), known))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
