"""Source or target group of a migration: the hosts that execute the run there.

The first host has process 0: commands are sent there, and the run's state is read there. Hosts without a shared file
system have a run directory each. Fence and migration lock are stored in every one of them, so that no process can
commit what the fence does not accept, and no other migration can acquire a part of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import Concatenate, ParamSpec, TypeVar

from midstream.counts import count
from midstream.errors import HostError, MidstreamError, UsageError
from midstream.fleet.fleet import Fleet, HostConfig, Target
from midstream.hosts.container_host import engine_host
from midstream.hosts.host import Host
from midstream.hosts.host_pool import HostPool
from midstream.hosts.rpc.answer_limits import decode_file
from midstream.install.errors import LaunchError
from midstream.launch import attempt_monitor
from midstream.launch.host_group_start import CONCURRENCY, prepare_target, run_directories_of
from midstream.launch.start_attempt import Prepared, Rank
from midstream.migrate.checkpoint_store import CheckpointStore, checkpoint_store_of
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.multi_host_copy import fan_out
from midstream.transfer.report import Progress
from midstream.watch.snapshot import RunView
from midstream_core import records
from midstream_host.allowlist import CHECKPOINT
from midstream_host.driver.run_file import RunFile
from midstream_host.runs import attempt_secrets, attempt_view, ownership, run_state, standby_state
from midstream_host.runs.run_state import MigrationAttempt, RunDescription
from midstream_host.trainers import processes

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def target_of(fleet: Fleet, name: str, hosts: Sequence[str]) -> Target:
    """Return the fleet's target of that name with these hosts, else a target of them."""
    target = fleet.target(name) if name in fleet.target_names and name not in fleet.unavailable else None
    return target if target is not None and target.hosts == tuple(hosts) else Target(name, tuple(hosts))


class HostGroup:
    """Source or target group of a migration of run ``run_id``."""

    def __init__(
        self, hosts: HostPool, target: Target, run_id: str, store: str = "", trainer: RunFile | None = None
    ) -> None:
        """Describe the group; ``trainer``: the run is one of this trainer."""
        self.target, self.run_id, self.store, self.trainer = target, run_id, store, trainer
        self._hosts = hosts
        self._prepared: Mapping[str, Prepared] | None = None

    @property
    def first(self) -> Host:
        """The connected host of process 0."""
        return self._hosts.get(self.target.hosts[0])

    def lookup_first(self) -> Host:
        """Return the host of process 0, connected or not."""
        return self._hosts.lookup(self.target.hosts[0])

    @property
    def members(self) -> list[Host]:
        """All hosts, connected."""
        return self._each(self._hosts.get, self.target.hosts)

    def connect(self) -> None:
        """Connect to all hosts. HostError if one cannot be reached."""
        for host in self.members:
            host.connect()

    @cached_property
    def run_hosts(self) -> list[Host]:
        """One host of each file system, ``first`` before the others, as found on hosts."""
        return run_directories_of(self.target, self.members)

    @cached_property
    def checkpoint_store(self) -> CheckpointStore:
        """The run's checkpoint store here.

        A bucket can be read while its hosts are unreachable.
        """
        first = self._hosts.lookup(self.target.hosts[0]) if self.store else self.first
        return checkpoint_store_of(self._hosts.fleet, first, self.run_id, self.store)

    @property
    def python(self) -> str:
        """Interpreter on the first host with the engine's packages; empty if unknown."""
        if self._prepared is not None:
            return self._prepared[self.target.hosts[0]].environment.python
        return self._config.python or ""

    @property
    def bucket_client_host(self) -> Host:
        """The first host, as one that has a bucket's client: in its container."""
        return engine_host(self.first, self._config, self.python)

    @property
    def _config(self) -> HostConfig:
        """The first host's entry of the fleet file."""
        return self._hosts.fleet.config_of(self.target, self.target.hosts[0])

    @property
    def paths(self) -> records.RunPaths:
        """The run's paths on the first host."""
        return self._paths(self.first)

    def _paths(self, host: Host) -> records.RunPaths:
        return records.RunPaths(host.root, self.run_id)

    @staticmethod
    def _each(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        if len(items) == 1:
            return [work(items[0])]
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            return list(pool.map(work, items))

    def _call_all(self, function: Callable[Concatenate[str, str, P], R]) -> Callable[P, list[R]]:
        """Return ``function`` of this run, called on all run hosts at once.

        ``function`` takes root, run id, and further arguments.
        """

        def call(*positional: P.args, **named: P.kwargs) -> list[R]:
            return self._each(
                lambda host: host.call(function)(host.root, self.run_id, *positional, **named), self.run_hosts
            )

        return call

    def _call_each(self, function: Callable[Concatenate[str, str, P], R]) -> Callable[P, R]:
        """Return ``function`` of this run, called host by host.

        The first host is called last, and its result is returned.
        """

        def call(*positional: P.args, **named: P.kwargs) -> R:
            first, *others = self.run_hosts
            for host in others:
                host.call(function)(host.root, self.run_id, *positional, **named)
            return first.call(function)(first.root, self.run_id, *positional, **named)

        return call

    def remove_secrets(self) -> None:
        """Remove the secrets of this run's launches on every run host."""
        self._call_all(attempt_secrets.remove_secrets)()

    # ------------------------------------------------------------------------------------------ state

    def describe(self) -> RunDescription:
        """Return the run as on the first host; running if any process runs."""
        first, *others = self._call_all(run_state.describe)()
        first = self.with_stored_checkpoints(first)
        attempts = {number for description in (first, *others) for number in description.attempts}
        running = any(description.running for description in (first, *others))
        return replace(first, running=running, attempts=sorted(attempts))

    def with_stored_checkpoints(self, described: RunDescription) -> RunDescription:
        """Return the first host's description with the checkpoint store's checkpoints."""
        return replace(described, checkpoints=self.checkpoint_store.checkpoints(described))

    def attempt_of_migration(self, migration: str) -> MigrationAttempt | None:
        """Return the newest attempt of a migration; running if any of its processes is."""
        attempts = [
            attempt
            for attempt in self._call_all(run_state.attempt_of_migration)(migration=migration)
            if attempt is not None
        ]
        newest = max((attempt.attempt for attempt in attempts), default=0)
        same = [attempt for attempt in attempts if attempt.attempt == newest]
        return replace(same[0], running=any(attempt.running for attempt in same)) if same else None

    def running_attempt(self) -> int:
        """Return the attempt with a running process; 0 without one."""
        return max(self._call_all(run_state.running_attempt)())

    def first_failure(self, attempt: int) -> str:
        """Describe the first failure of several processes in one line; empty if unknown."""
        if len(self.target.hosts) == 1:
            return ""
        try:
            return attempt_monitor.verdict(
                attempt_monitor.look_at_ranks(self._hosts, self._ranks(attempt), self.run_id, attempt)
            )
        except HostError:
            return ""

    def why_ended(self, attempt: int, run: RunView) -> str:
        """Describe in one line why an attempt ended.

        ``run`` is the last observation of it.
        """
        message = run.status.message if run.status else ""
        last = next((line for line in reversed(run.log) if line.strip()), "")
        return self.first_failure(attempt) or message or last or "its log is empty"

    def check_group(self, attempt: int) -> None:
        """Raise MidstreamError if one of several processes has failed.

        Process 0, which is watched, may wait minutes for one that exited before the rendezvous.
        """
        failure = self.first_failure(attempt)
        if failure:
            raise MidstreamError(
                f"attempt {attempt} on {self.target.name} failed: {failure}",
                f"its logs: {self.paths.attempt(attempt).dir} on {', '.join(self.target.hosts)}",
            )

    def _ranks(self, attempt: int) -> Sequence[Rank]:
        return attempt_monitor.ranks_of(self._hosts, self.first.name, self.run_id, attempt)

    # ------------------------------------------------------------------------------------------ the fence

    def acquire(self, migration: str, epoch: int, owner: str, seconds: float) -> records.Fence:
        """Acquire the migration lock on every run host; return the first host's fence.

        RemoteError names the migration that has the lock.
        """
        return self._call_each(ownership.acquire)(migration=migration, epoch=epoch, owner=owner, seconds=seconds)

    def release(self, migration: str, epoch: int, owner: str) -> None:
        """Release the migration lock of a migration that is rolled back, and its pin."""
        self.checkpoint_store.unpin(migration)
        self._call_each(ownership.release)(migration=migration, epoch=epoch, owner=owner)

    def put_fence(
        self,
        fence: records.Fence,
        migration: str,
        chain: records.OwnershipChain | None = None,
        process: str | None = None,
    ) -> None:
        """Write the fence on every run host, on the first one last.

        The signed records that prove it are written before. ``process``: as of `ownership.put_fence`; what the first
        host has permitted counts.
        """
        text = None if chain is None else chain.to_json()
        first, *others = self.run_hosts
        for host in (*others, first):
            host.call(ownership.put_fence)(
                root=host.root,
                run_id=self.run_id,
                fence=fence.to_json(),
                migration=migration,
                chain=text,
                process=process if host is first else None,
            )

    def seal(self, migration: str, epoch: int, owner: str, step: int) -> None:
        """Seal a stopped run on every run host."""
        self._call_each(ownership.seal)(migration=migration, epoch=epoch, owner=owner, sealed_step=step)

    # ------------------------------------------------------------------------------------------ processes

    def stop(self, attempt: int, timeout: float) -> None:
        """Command all processes to save at one step boundary and exit.

        Raises:
            LaunchError: a process failed, or takes longer than ``timeout`` seconds.
        """
        attempt_monitor.stop_ranks(self._hosts, self._ranks(attempt), self.run_id, attempt, timeout)
        self.wait_exited(attempt)

    def kill(self, attempt: int) -> None:
        """Kill all processes; nothing is saved. LaunchError if one keeps running."""
        attempt_monitor.kill_ranks(self._hosts, self._ranks(attempt), self.run_id, attempt)
        self.wait_exited(attempt)
        self.end_trainer(attempt)

    def end_trainer(self, attempt: int) -> None:
        """End what a killed driver of another trainer has left.

        Raises:
            LaunchError: A process keeps running.
        """
        if self.trainer is None:
            return

        def end(host: Host) -> list[int]:
            return host.call(processes.end)(host.root, self.run_id, attempt=attempt)

        pids = [
            pid for ended in self._each(end, self.members) for pid in ended
        ]  # one directory, but each its processes
        if pids:
            raise LaunchError(
                f"attempt {attempt} of {self.run_id} on {self.target.name}: processes "
                f"{', '.join(map(str, pids))} of {self.trainer.trainer} do not end",
                "check the processes of the host",
            )

    def wait_exited(self, attempt: int) -> None:
        """Wait for evidence from every host that none of the attempt's processes runs.

        Raises:
            LaunchError: a process keeps running.
            HostError: a host does not answer.
        """

        def wait(name: str) -> None:
            host = self._hosts.get(name)
            if attempt in host.call(run_state.describe)(root=host.root, run_id=self.run_id).attempts:
                attempt_monitor.wait_exited(host, self.run_id, attempt)

        self._each(wait, self.target.hosts)

    # ------------------------------------------------------------------------------------------ preparation

    def prepared(self) -> Mapping[str, Prepared]:
        """Return engine and environment by host name, installed at the first call.

        Raises:
            LaunchError: an installation failed.
            HostError: a host does not answer.
        """
        if self._prepared is None:
            self._prepared = prepare_target(self._hosts, self.target, trainer=self.trainer)
        return self._prepared

    def distribute(
        self, tree: Callable[[Host], str], progress: Callable[[Progress], None] | None = None, kind: str = CHECKPOINT
    ) -> None:
        """Copy a tree of objects from the first host to the other run hosts.

        ``tree`` returns its directory on a host.
        """
        others = {host.name: Endpoint(host, tree(host)) for host in self.run_hosts[1:]}
        if others:
            fan_out(Endpoint(self.first, tree(self.first)), others, progress=progress, kind=kind)

    def distribute_checkpoint(self, name: str, progress: Callable[[Progress], None] | None = None) -> None:
        """Distribute a checkpoint, unless these hosts saved it: then each has its share."""
        if len(self.run_hosts) > 1 and not self.store:
            path = f"{self.paths.checkpoint(name)}/{records.MANIFEST}"
            manifest = decode_file(self.first.call(run_state.read_text)(path=path), f"{self.first.name}: {path}")
            if not manifest.get("hosts"):
                self.distribute(lambda host: self._paths(host).checkpoint(name), progress)

    def put_config(self, text: str) -> None:
        """Write ``text`` as the run's config on every run host before an attempt starts."""
        self._call_each(standby_state.put_config)(text=text)

    def share_config(self) -> None:
        """Copy the first host's config to the other run hosts."""
        if len(self.run_hosts) > 1:
            text = self.first.call(run_state.read_text)(path=self.paths.config)
            for host in self.run_hosts[1:]:
                host.call(standby_state.put_config)(root=host.root, run_id=self.run_id, text=text)


def hosts_of_run(fleet: Fleet, source: Host, run: RunView, target: Target) -> tuple[str, ...]:
    """Return names of the hosts of the run's newest attempt, that of process 0 first.

    Raises:
        MidstreamError: the hosts of its processes are not known.
        UsageError: a host is not in the fleet, or is in ``target``.
    """
    seen = source.call(attempt_view.attempt)(root=source.root, run_id=run.run_id, number=run.attempt)
    names = tuple(seen.group) or (source.name,)
    processes = run.status.processes if run.status else 1
    if run.running and not seen.group and processes > len(seen.processes):
        raise MidstreamError(
            f"run {run.run_id} has {count(processes, 'process', 'processes')}, and "
            f"{source.name} reports {len(seen.processes)}: midstream did not start it",
            "stop it, and start it again with --launch on a target of these hosts",
        )
    for name in names:
        if name not in fleet.hosts:
            raise UsageError(
                f"run {run.run_id} runs on {', '.join(names)}, and the fleet has no host {name}", "add it there"
            )
        if name in target.hosts:
            raise UsageError(
                f"{name} is one of the hosts of run {run.run_id}, and of target {target.name}",
                "choose a target of other hosts",
            )
    return names
