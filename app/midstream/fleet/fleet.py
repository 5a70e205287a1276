"""Fleet: hosts, targets and stores, as frozen dataclasses.

docs/reference/fleet-file.md describes each field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import draccus

from midstream.errors import UsageError
from midstream.fleet.container_config import ContainerConfig
from midstream.fleet.gce_target import ComputeTarget  # noqa: F401 (registers its type)
from midstream.fleet.notify_config import NotifyConfig
from midstream.fleet.slice_target import Cluster, SliceTarget, TargetConfig
from midstream.fleet.store_config import StoreConfig
from midstream.fleet.tpu_target import TpuTarget  # noqa: F401 (registers its type)
from midstream.suggestions import nearest
from midstream_core.visible_devices import visible_devices

DEFAULT_ROOT = "~/.midstream"
COPY_ROUTES = ("auto", "direct", "relay")  # of bytes between two SSH hosts
JOB_KINDS = ("job", "jobset")  # of a Kubernetes target
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
    devices: int | None = None  # virtual CPU devices instead of real ones; a list of GPUs becomes part of ``env``
    price_per_hour: float | None = None  # in the currency of all prices in the file
    store: str | None = None  # of the checkpoints of its runs: a name of stores:, or the URL of a bucket
    bandwidth_limit: str | None = None  # of copies from and to the host: 100MB/s
    copy_route: str | None = None  # of copies: one of COPY_ROUTES
    copy_ports: str | None = None  # FIRST-LAST, open to other hosts and this machine for direct copies; None: any
    container: ContainerConfig | None = None  # in which its engines run; None: on the host itself

    @property
    def is_local(self) -> bool:
        """Whether it is the operator's machine."""
        return False

    @property
    def cluster(self) -> Cluster | None:
        """The Kubernetes cluster that has it; None where it is no pod."""
        return None

    @property
    def visible(self) -> list[str] | None:
        """The GPUs that its engines see, by index or UUID; None: all."""
        return visible_devices(self.env)


@HostConfig.register_subclass("local")
@dataclass(frozen=True)
class LocalHostConfig(HostConfig):
    """The operator's machine."""

    @property
    def is_local(self) -> bool:
        return True


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


@HostConfig.register_subclass("kubernetes")
@dataclass(frozen=True)
class KubernetesHostConfig(HostConfig):
    """A container of a pod, reached by ``kubectl exec``."""

    pod: str = ""  # its name; or a selector
    selector: str = ""  # labels that one running pod has: app=train,index=0
    pod_container: str | None = None  # None: the pod's default
    context: str | None = None  # of the kubeconfig; None: the current one
    namespace: str | None = None  # None: the context's
    kubeconfig: str | None = None  # None: kubectl's own

    @property
    def cluster(self) -> Cluster:
        return {"context": self.context, "namespace": self.namespace, "kubeconfig": self.kubeconfig}


@TargetConfig.register_subclass("hosts")
@dataclass(frozen=True)
class HostsTarget(TargetConfig):
    """A target of hosts of the fleet file."""

    hosts: list[str] = field(default_factory=list)
    shared_root: str | None = None  # a directory that all hosts share, and that replaces the root of each
    ports: list[int] = field(default_factory=list)  # first and last open port between the hosts; empty: all
    container: ContainerConfig | None = None  # instead of that of each host


@TargetConfig.register_subclass("slurm")
@dataclass(frozen=True)
class SlurmTarget(TargetConfig):
    """An allocation of a SLURM cluster, with one engine process for each task."""

    host: str = ""  # a login node, whose root the compute nodes share
    sbatch: list[str] = field(default_factory=list)  # flags of sbatch, such as --nodes=2
    ports: list[int] = field(default_factory=list)
    container: ContainerConfig | None = None  # on the compute nodes
    guard_lead: str | None = None  # 45m: how long before its time limit a guarded job is handed on


@TargetConfig.register_subclass("kubernetes")
@dataclass(frozen=True)
class KubernetesTarget(TargetConfig):
    """Pods of an indexed Job or of a JobSet, each of which is a host.

    `midstream.fleet.job_pods` has its hosts.
    """

    name: str = ""  # of the Job or JobSet; empty: the target's name
    kind: str = "job"  # one of JOB_KINDS
    pods: int = 1
    pod_container: str | None = None
    context: str | None = None
    namespace: str | None = None
    kubeconfig: str | None = None
    create: bool = False  # permits midstream to create it
    image: str = ""  # of the pods that midstream creates
    resources: dict[str, Any] = field(default_factory=dict)  # limits of each pod: {nvidia.com/gpu: 8}
    node_selector: dict[str, str] = field(default_factory=dict)
    volume_claim: str = ""  # a claim that is mounted at the root of each pod
    manifest: str = ""  # a file of this machine, instead of midstream's own manifest
    ports: list[int] = field(default_factory=list)
    worker: dict[str, Any] = field(default_factory=dict)  # further settings of each pod as a host

    @property
    def cluster(self) -> Cluster:
        return {"context": self.context, "namespace": self.namespace, "kubeconfig": self.kubeconfig}


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
    slice: SliceTarget | None = None
    container: ContainerConfig | None = None  # instead of that of its hosts

    @property
    def describes_itself(self) -> bool:
        """Whether its hosts have a metadata server, by which jax finds them all."""
        return self.slice is not None and self.slice.has_metadata


def pod_names(target: str, pods: int) -> tuple[str, ...]:
    """Return the names of a Kubernetes target's pods as hosts."""
    return tuple(f"{target}-{index}" for index in range(pods))


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
    notify: tuple[NotifyConfig, ...] = ()  # webhooks that get it too
    operators: tuple[str, ...] = ()  # public keys of other operators, whose ownership records count

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names of all targets. Each host is a target of its own name."""
        return (*self.hosts, *(name for name in self.targets if name not in self.hosts))

    @property
    def has_slices(self) -> bool:
        """True if it has targets whose hosts a provider creates."""
        return bool(self.slices)

    @property
    def has_pods(self) -> bool:
        """True if it has targets whose pods midstream may create."""
        return any(isinstance(target, KubernetesTarget) for target in self.targets.values())

    def slice_of(self, name: str) -> SliceTarget | None:
        """Return a target whose machines a provider creates; None for any other."""
        config = self.targets.get(name)
        return config if isinstance(config, SliceTarget) else None

    def slurm_of(self, name: str) -> SlurmTarget | None:
        """Return a target that is an allocation of SLURM; None for any other."""
        config = self.targets.get(name)
        return config if isinstance(config, SlurmTarget) else None

    def is_login_node(self, host: str, target: str) -> bool:
        """Return whether ``host`` is the login node of ``target``, an allocation.

        Both have one run directory.
        """
        slurm = self.slurm_of(target)
        return slurm is not None and slurm.host == host

    def pods_of(self, name: str) -> KubernetesTarget | None:
        """Return a target of pods; None for any other."""
        config = self.targets.get(name)
        return config if isinstance(config, KubernetesTarget) else None

    @property
    def slices(self) -> dict[str, SliceTarget]:
        """The targets whose machines a provider creates, by name."""
        return {name: target for name, target in self.targets.items() if isinstance(target, SliceTarget)}

    @property
    def local_hosts(self) -> tuple[str, ...]:
        """Names of the hosts that are the operator's machine."""
        return tuple(name for name, config in self.hosts.items() if config.is_local)

    def store_of(self, host: str) -> str:
        """Return the URL for checkpoints of a host's runs.

        Empty: they stay in the run directories.
        """
        return self.store_url(self.hosts[host].store or "")

    def store_url(self, given: str) -> str:
        """Resolve a value of ``store:``, a name or an address."""
        return (self.stores[given].url if given in self.stores else given).rstrip("/")

    def store_of_target(self, name: str) -> str:
        """Return the checkpoint URL of a target; empty for an unknown target.

        The hosts of a slice may be unknown: its entry names the store.
        """
        config = self.targets.get(name)
        if isinstance(config, SliceTarget):
            return self.store_url(str(config.worker.get("store") or ""))
        hosts = self.hosts_of(name) if name in self.target_names else ()
        return self.store_of(hosts[0]) if hosts else ""

    def hosts_of(self, name: str) -> tuple[str, ...]:
        """Return the hosts of a target; empty if they are unknown now."""
        config = self.targets.get(name)
        unknown = name in self.unavailable or (isinstance(config, SliceTarget) and not config.hosts)
        return () if unknown else self.target(name).hosts

    def config_of(self, target: Target, host: str) -> HostConfig:
        """Return the settings of one of a target's hosts, for attempts on this target."""
        config = self.hosts[host]
        return config if target.container is None else replace(config, container=target.container)

    def target(self, name: str) -> Target:
        """Return a target by name.

        Raises UsageError, with the closest names, if there is none, or if its hosts are unknown now.
        """
        if name in self.unavailable:
            raise self.unavailable[name]
        if name in self.targets:
            config = self.targets[name]
            if isinstance(config, SlurmTarget):
                ports = tuple(config.ports)
                return Target(name, (config.host,), ports=ports, slurm=config, container=config.container)
            if isinstance(config, SliceTarget):
                if not config.hosts:
                    raise UsageError(f"the workers of {name} are unknown", "midstream --status looks them up")
                return Target(name, tuple(config.hosts), slice=config)
            if isinstance(config, KubernetesTarget):
                return Target(name, pod_names(name, config.pods), ports=tuple(config.ports))
            assert isinstance(config, HostsTarget)
            ports = tuple(config.ports)
            return Target(name, tuple(config.hosts), config.shared_root, ports, container=config.container)
        if name in self.hosts:
            return Target(name, (name,))
        raise UsageError(f"no target {name!r} in {self.path or 'the fleet file'}", nearest(name, self.target_names))
