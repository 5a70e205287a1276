"""Fleet: hosts, targets and stores, as frozen dataclasses. docs/reference/fleet-file.md describes each field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import draccus

from midstream.errors import UsageError
from midstream.fleet.store_config import StoreConfig
from midstream.suggestions import nearest

DEFAULT_ROOT = "~/.midstream"
COPY_ROUTES = ("auto", "direct", "relay")  # of bytes between two SSH hosts
REACHES = ("external", "internal", "iap")  # of the workers of a TPU slice
VARIANTS = ("cpu", "cuda12", "cuda13", "tpu", "tpu-v3")  # of the engine's packages: locks/engine-<variant>.txt


@dataclass(frozen=True)
class HostConfig(draccus.ChoiceRegistry):
    """Settings of a host, of any type."""

    root: str = DEFAULT_ROOT
    python: str | None = None  # an interpreter that has the engine's packages
    setup: list[str] = field(default_factory=list)  # shell lines that run before the engine
    env: dict[str, str] = field(default_factory=dict)  # added to the engine's environment
    secrets: dict[str, str] = field(default_factory=dict)  # the same, from env:NAME or file:PATH of this machine
    variant: str | None = None  # of the engine's packages: cpu, cuda12, cuda13, tpu, tpu-v3; None: detected
    wheelhouse: str | None = None  # on this machine: wheels for a host that reaches no package index
    internal_address: str | None = None  # for the other hosts of a target; None: detected
    stall_timeout: float | None = None  # seconds without a step after which an engine is ended; None: 900
    devices: int | None = None  # virtual CPU devices instead of real ones
    price_per_hour: float | None = None  # in the currency of all prices in the file
    store: str | None = None  # of the checkpoints of its runs: a name of stores:, or the URL of a bucket
    bandwidth_limit: str | None = None  # of copies from and to the host: 100MB/s
    copy_route: str | None = None  # to other SSH hosts: one of COPY_ROUTES
    copy_ports: str | None = None  # FIRST-LAST, open to other hosts for a direct copy; None: any


@HostConfig.register_subclass("local")
@dataclass(frozen=True)
class LocalHostConfig(HostConfig):
    """The operator's machine."""


@HostConfig.register_subclass("ssh")
@dataclass(frozen=True)
class SshHostConfig(HostConfig):
    """A host behind an SSH server.

    The name in ``address`` may be an alias of the SSH configuration, which supplies fields that the entry lacks.
    """

    address: str = ""  # [user@]name[:port]
    port: int | None = None
    user: str | None = None
    identity_file: str | None = None
    ssh_config: str = "~/.ssh/config"
    known_hosts: str | None = None  # overrides UserKnownHostsFile


@dataclass(frozen=True)
class TargetConfig(draccus.ChoiceRegistry):
    """Settings of a target: one or more hosts that form one mesh."""


@TargetConfig.register_subclass("hosts")
@dataclass(frozen=True)
class HostsTarget(TargetConfig):
    """A target of hosts of the fleet file."""

    hosts: list[str] = field(default_factory=list)
    shared_root: str | None = None  # a directory that all hosts share, and that replaces the root of each
    ports: list[int] = field(default_factory=list)  # first and last open port between the hosts; empty: all


@TargetConfig.register_subclass("slurm")
@dataclass(frozen=True)
class SlurmTarget(TargetConfig):
    """An allocation of a SLURM cluster, with one engine process for each task."""

    host: str = ""  # a login node, whose root the compute nodes share
    sbatch: list[str] = field(default_factory=list)  # flags of sbatch, such as --nodes=2
    ports: list[int] = field(default_factory=list)


@TargetConfig.register_subclass("tpu")
@dataclass(frozen=True)
class TpuTarget(TargetConfig):
    """A slice of Cloud TPUs, each of whose workers is a host. docs/reference/fleet-file.md describes each field."""

    project: str = ""
    zone: str = ""
    name: str = ""  # of the node; empty: the target's name
    accelerator_type: str = ""
    topology: str | None = None  # with accelerator_type as a bare generation: v5p and 2x2x4
    runtime_version: str = ""
    create: bool = False  # permits midstream to create it: spot, reserved or on demand
    spot: bool = False
    reserved: bool = False
    reservation: str | None = None  # full name of the reservation
    queued: bool = False  # requested in a queue
    valid_until: str = "1h"  # longest wait for its creation: 30m, 6h, 2d
    network: str | None = None
    subnetwork: str | None = None
    service_account: str | None = None  # identity of the workers, which accesses gs://
    reach: str = "external"  # one of REACHES: the addresses that SSH connects to
    user: str | None = None  # on the workers; None: the local user's name
    os_login: str | None = None  # the account whose OS Login profile is used
    identity_file: str = "~/.ssh/google_compute_engine"
    port: int = 22
    price_per_hour: float | None = None  # of the complete slice
    worker: dict[str, Any] = field(
        default_factory=dict
    )  # further settings of each worker: root, python, setup, env, ...
    hosts: list[str] = field(default_factory=list)  # its workers, added once the slice is found

    @property
    def price_class(self) -> str:
        """``spot``, ``reserved`` or ``on demand``."""
        return "spot" if self.spot else "reserved" if self.reserved or self.reservation else "on demand"


@dataclass(frozen=True)
class GoogleConfig:
    """Further projects and zones in which slices are looked up."""

    projects: list[str] = field(default_factory=list)
    zones: list[str] = field(default_factory=list)  # empty: all


@dataclass(frozen=True)
class Target:
    """A target with the names of its hosts; for SLURM, the login node."""

    name: str
    hosts: tuple[str, ...]
    shared_root: str | None = None
    ports: tuple[int, ...] = ()
    slurm: SlurmTarget | None = None
    tpu: TpuTarget | None = None


@dataclass(frozen=True)
class Fleet:
    """The contents of a fleet file. ``text`` is the file's text."""

    hosts: Mapping[str, HostConfig] = field(default_factory=dict)
    targets: Mapping[str, TargetConfig] = field(default_factory=dict)
    stores: Mapping[str, StoreConfig] = field(default_factory=dict)
    google: GoogleConfig = field(default_factory=GoogleConfig)
    unavailable: Mapping[str, UsageError] = field(
        default_factory=dict
    )  # reasons why targets without a slice have no hosts now
    path: str = ""
    text: str = ""
    on_event: str | None = None  # a command line that gets each notable event as JSON on its stdin

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names of all targets. Each host is a target of its own name."""
        return (*self.hosts, *(name for name in self.targets if name not in self.hosts))

    @property
    def has_slices(self) -> bool:
        """True if it has targets whose hosts a provider creates."""
        return any(isinstance(target, TpuTarget) for target in self.targets.values())

    def store_of(self, host: str) -> str:
        """Return the URL for checkpoints of a host's runs; empty: they stay in the run directories."""
        return self.store_url(self.hosts[host].store or "")

    def store_url(self, given: str) -> str:
        """Resolve a value of ``store:``, a name or an address."""
        return (self.stores[given].url if given in self.stores else given).rstrip("/")

    def store_of_target(self, name: str) -> str:
        """Return the same for a target, even if its hosts are unknown now; empty for an unknown target."""
        config = self.targets.get(name)
        if isinstance(config, TpuTarget):
            return self.store_url(str(config.worker.get("store") or ""))
        hosts = self.hosts_of(name) if name in self.target_names else ()
        return self.store_of(hosts[0]) if hosts else ""

    def hosts_of(self, name: str) -> tuple[str, ...]:
        """Return the hosts of a target; empty if they are unknown now."""
        config = self.targets.get(name)
        unknown = name in self.unavailable or (isinstance(config, TpuTarget) and not config.hosts)
        return () if unknown else self.target(name).hosts

    def target(self, name: str) -> Target:
        """Return a target by name.

        Raises UsageError, with the closest names, if there is none, or if its hosts are unknown now.
        """
        if name in self.unavailable:
            raise self.unavailable[name]
        if name in self.targets:
            config = self.targets[name]
            if isinstance(config, SlurmTarget):
                return Target(name, (config.host,), ports=tuple(config.ports), slurm=config)
            if isinstance(config, TpuTarget):
                if not config.hosts:
                    raise UsageError(f"the workers of {name} are unknown", "midstream --status looks them up")
                return Target(name, tuple(config.hosts), tpu=config)
            assert isinstance(config, HostsTarget)
            return Target(name, tuple(config.hosts), config.shared_root, tuple(config.ports))
        if name in self.hosts:
            return Target(name, (name,))
        raise UsageError(f"no target {name!r} in {self.path or 'the fleet file'}", nearest(name, self.target_names))
