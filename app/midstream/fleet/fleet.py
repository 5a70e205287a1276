"""What a fleet is: hosts, targets and stores, as frozen dataclasses. docs/hosts.md tells what each field does."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import draccus

from midstream.errors import UsageError
from midstream.fleet.bucket_settings import StoreConfig

DEFAULT_ROOT = "~/.midstream"
COPY_ROUTES = ("auto", "direct", "relay")  # of bytes between two SSH hosts
REACHES = ("external", "internal", "iap")  # of the workers of a TPU slice
VARIANTS = ("cpu", "cuda12", "cuda13", "tpu", "tpu-v3")  # of the engine's packages: locks/engine-<variant>.txt


@dataclass(frozen=True)
class HostConfig(draccus.ChoiceRegistry):
    """A machine.

    ``python`` names an interpreter that has the engine's packages; ``setup`` are shell lines before the engine starts;
    ``env`` is added to its environment; ``secrets`` too, each from where this machine has it (``env:NAME`` or
    ``file:PATH``); ``devices`` asks for that many virtual CPU devices in the place of real ones.
    """

    root: str = DEFAULT_ROOT
    python: str | None = None
    setup: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    variant: str | None = None  # of the engine's packages: cpu, cuda12, cuda13, tpu, tpu-v3; None: by what is there
    wheelhouse: str | None = None  # on this machine: wheels that are copied to a host that reaches no package index
    internal_address: str | None = None  # how the other hosts of a target reach it; None: found out
    stall_timeout: float | None = None  # seconds without a step after which an engine that lives is ended; None: 900
    devices: int | None = None
    price_per_hour: float | None = None  # in whatever currency all of the file's prices are
    store: str | None = None  # where runs here keep their checkpoints: a name of stores:, or gs://BUCKET/PREFIX
    bandwidth_limit: str | None = None  # at most, of what is copied to and from it: 100MB/s
    copy_route: str | None = None  # to other SSH hosts: one of COPY_ROUTES
    copy_ports: str | None = None  # FIRST-LAST, where other hosts may call it for a direct copy; any where it is open


@HostConfig.register_subclass("local")
@dataclass(frozen=True)
class LocalHost(HostConfig):
    """This machine."""


@HostConfig.register_subclass("ssh")
@dataclass(frozen=True)
class SshHost(HostConfig):
    """A machine behind an SSH server. ``address`` is ``[user@]name[:port]``; the name may be an alias of ~/.ssh/config
    (``ssh_config`` names another file), which fills in what the address leaves open."""

    address: str = ""
    port: int | None = None
    user: str | None = None
    identity_file: str | None = None
    ssh_config: str = "~/.ssh/config"
    known_hosts: str | None = None  # in the place of UserKnownHostsFile


@dataclass(frozen=True)
class TargetConfig(draccus.ChoiceRegistry):
    """One or more hosts that form one mesh."""


@TargetConfig.register_subclass("hosts")
@dataclass(frozen=True)
class HostsTarget(TargetConfig):
    """Hosts that are there already. ``shared_root`` is a directory that all of them see, and becomes the root of each;
    ``ports`` are the first and the last port that are open between them, where not all are."""

    hosts: list[str] = field(default_factory=list)
    shared_root: str | None = None
    ports: list[int] = field(default_factory=list)


@TargetConfig.register_subclass("slurm")
@dataclass(frozen=True)
class SlurmTarget(TargetConfig):
    """An allocation of a SLURM cluster. ``host`` is where its commands are (a login node), whose root the compute nodes
    see too; ``sbatch`` are its flags, such as ``--nodes=2``; one engine process a task."""

    host: str = ""
    sbatch: list[str] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)


@TargetConfig.register_subclass("tpu")
@dataclass(frozen=True)
class TpuTarget(TargetConfig):
    """A slice of Google's TPUs: node ``name`` in a project and zone, each of whose workers is a host. ``create`` allows
    midstream to have it made: spot, reserved or on demand; ``queued`` asks for it in a queue, for ``valid_until`` at
    most. docs/gcp.md tells every field."""

    project: str = ""
    zone: str = ""
    name: str = ""  # of the node; empty: as the target
    accelerator_type: str = ""
    topology: str | None = None  # with accelerator_type as a bare generation: v5p and 2x2x4
    runtime_version: str = ""
    create: bool = False
    spot: bool = False
    reserved: bool = False
    reservation: str | None = None  # full name of the reservation that it comes from
    queued: bool = False
    valid_until: str = "1h"  # how long a creation is waited for: 30m, 6h, 2d
    network: str | None = None
    subnetwork: str | None = None
    service_account: str | None = None  # the workers' own identity: what reads and writes gs://
    reach: str = "external"  # of REACHES: which addresses SSH takes
    user: str | None = None  # on the workers; None: the name of whoever starts midstream
    os_login: str | None = None  # the account whose OS Login profile is used
    identity_file: str = "~/.ssh/google_compute_engine"
    port: int = 22
    price_per_hour: float | None = None  # of the whole slice
    worker: dict[str, Any] = field(default_factory=dict)  # what each worker has beside: root, python, setup, env, ...
    hosts: list[str] = field(default_factory=list)  # its workers; filled in by midstream once it is found

    @property
    def price_class(self) -> str:
        return "spot" if self.spot else "reserved" if self.reserved or self.reservation else "on demand"


@dataclass(frozen=True)
class GoogleConfig:
    """Where else slices are looked for than where targets say."""

    projects: list[str] = field(default_factory=list)
    zones: list[str] = field(default_factory=list)  # none: all


@dataclass(frozen=True)
class Target:
    """Hosts, by name, that a run can be started on together. Of a SLURM target, the login host."""

    name: str
    hosts: tuple[str, ...]
    shared_root: str | None = None
    ports: tuple[int, ...] = ()
    slurm: SlurmTarget | None = None
    tpu: TpuTarget | None = None


@dataclass(frozen=True)
class Fleet:
    """Everything that midstream knows about machines. ``text`` is the file as it was read."""

    hosts: Mapping[str, HostConfig] = field(default_factory=dict)
    targets: Mapping[str, TargetConfig] = field(default_factory=dict)
    stores: Mapping[str, StoreConfig] = field(default_factory=dict)
    google: GoogleConfig = field(default_factory=GoogleConfig)
    absent: Mapping[str, UsageError] = field(default_factory=dict)  # why targets that come and go have no hosts now
    path: str = ""
    text: str = ""
    on_event: str | None = None  # a command line that gets each event worth a person's while, as JSON on its stdin

    @property
    def target_names(self) -> tuple[str, ...]:
        """Hosts are targets of their own name."""
        return (*self.hosts, *(name for name in self.targets if name not in self.hosts))

    @property
    def comes_and_goes(self) -> bool:
        """Whether it has targets whose hosts only their provider knows."""
        return any(isinstance(target, TpuTarget) for target in self.targets.values())

    def store_of(self, host: str) -> str:
        """The ``gs://`` prefix under which a host's runs keep their checkpoints; empty: in their own directories."""
        return self.store_url(self.hosts[host].store or "")

    def store_url(self, given: str) -> str:
        """Of what ``store:`` says: a name or an address."""
        return (self.stores[given].url if given in self.stores else given).rstrip("/")

    def store_of_target(self, name: str) -> str:
        """The same of a target, also of one whose hosts are not known now; empty where there is no such target."""
        config = self.targets.get(name)
        if isinstance(config, TpuTarget):
            return self.store_url(str(config.worker.get("store") or ""))
        hosts = self.hosts_of(name) if name in self.target_names else ()
        return self.store_of(hosts[0]) if hosts else ""

    def hosts_of(self, name: str) -> tuple[str, ...]:
        """The hosts of a target that is known; none where they are not known now."""
        config = self.targets.get(name)
        waits = name in self.absent or (isinstance(config, TpuTarget) and not config.hosts)
        return () if waits else self.target(name).hosts

    def target(self, name: str) -> Target:
        """UsageError with the nearest names where there is none."""
        if name in self.absent:
            raise self.absent[name]
        if name in self.targets:
            config = self.targets[name]
            if isinstance(config, SlurmTarget):
                return Target(name, (config.host,), ports=tuple(config.ports), slurm=config)
            if isinstance(config, TpuTarget):
                if not config.hosts:
                    raise UsageError(f"the workers of {name} are not known", "midstream --status looks for them")
                return Target(name, tuple(config.hosts), tpu=config)
            assert isinstance(config, HostsTarget)
            return Target(name, tuple(config.hosts), config.shared_root, tuple(config.ports))
        if name in self.hosts:
            return Target(name, (name,))
        raise UsageError(f"no target {name!r} in {self.path or 'the fleet file'}", nearest(name, self.target_names))


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint for a name that is not known."""
    near = difflib.get_close_matches(name, known, 3)
    return f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(known) or 'none'}"
