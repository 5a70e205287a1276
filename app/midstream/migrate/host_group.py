"""The hosts that carry a run out on one side of a move, as one.

The first has process 0: orders go there, and what is known of the run is read there. Hosts without a shared file system
have a run directory each, their *homes*: fence and mover lie in every one of them, so that no process of the run can
commit what the fence does not accept, and no other migration takes hold of a part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

from midstream.errors import HostError, MidstreamError, UsageError
from midstream.fleet.fleet import Fleet, Target
from midstream.hosts.host import Host
from midstream.hosts.host_pool import Hosts
from midstream.hosts.rpc.answer_limits import decode_file
from midstream.launch import attempt_monitor
from midstream.launch.host_group_start import AT_ONCE, prepare_target, run_directories_of
from midstream.launch.start_attempt import Prepared, Rank, wait_exited
from midstream.migrate.checkpoint_store import CheckpointStore, checkpoint_store_of
from midstream.remote.copy.allowlist import CHECKPOINT
from midstream.transfer import Endpoint, Progress, fan_out
from midstream.watch.snapshot import RunView
from midstream_engine import records


def target_of(fleet: Fleet, name: str, hosts: Sequence[str]) -> Target:
    """The fleet's target of that name, where it has these hosts; else one that is made of them."""
    known = fleet.target(name) if name in fleet.target_names and name not in fleet.absent else None
    return known if known is not None and known.hosts == tuple(hosts) else Target(name, tuple(hosts))


class HostGroup:
    """One side of a move of the run ``run_id``."""

    def __init__(self, hosts: Hosts, target: Target, run_id: str, store: str = ""):
        self.target, self.run_id, self.store = target, run_id, store
        self._hosts = hosts
        self._prepared: Mapping[str, Prepared] | None = None

    @property
    def first(self) -> Host:
        """The connected host of process 0."""
        return self._hosts.get(self.target.hosts[0])

    @property
    def members(self) -> list[Host]:
        """All of them, connected."""
        return self._each(self._hosts.get, self.target.hosts)

    def connect(self) -> None:
        """Reach all of them. HostError."""
        for host in self.members:
            host.connect()

    @cached_property
    def run_hosts(self) -> list[Host]:
        """One host of each file system, ``first`` before the others: looked at, not assumed."""
        return run_directories_of(self.target, self.members)

    @cached_property
    def checkpoint_store(self) -> CheckpointStore:
        """Where the run keeps its checkpoints here. A bucket is there whether or not its hosts answer."""
        first = self._hosts.peek(self.target.hosts[0]) if self.store else self.first
        return checkpoint_store_of(self._hosts.fleet, first, self.run_id, self.store)

    @property
    def python(self) -> str:
        """On the first host, an interpreter with the engine's packages, where one is known; else empty."""
        if self._prepared is not None:
            return self._prepared[self.target.hosts[0]].environment.python
        return self._hosts.fleet.hosts[self.target.hosts[0]].python or ""

    @property
    def paths(self) -> records.RunPaths:
        """The run's on the first host."""
        return self._paths(self.first)

    def _paths(self, host: Host) -> records.RunPaths:
        return records.RunPaths(host.root, self.run_id)

    @staticmethod
    def _each(work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        if len(items) == 1:
            return [work(items[0])]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(work, items))

    def _ask(self, function: str, **arguments: Any) -> list[Any]:
        """The answer of each home."""
        return self._each(
            lambda host: host.call(function, root=host.root, run_id=self.run_id, **arguments), self.run_hosts
        )

    def _tell(self, function: str, **arguments: Any) -> Any:
        """Each home in turn, the first one last: what it says stands for all. Its answer."""
        answers = [
            host.call(function, root=host.root, run_id=self.run_id, **arguments)
            for host in (*self.run_hosts[1:], self.run_hosts[0])
        ]
        return answers[-1]

    def remove_secrets(self) -> None:
        """Remove what launches left for engines of this run, on every home."""
        self._ask("runs.attempts.remove_secrets")

    # ------------------------------------------------------------------------------------------ looking

    def describe(self) -> dict[str, Any]:
        """The run as the first host has it; alive where any of its processes is. See ``remote.runs.describe``."""
        first, *others = self._ask("runs.run_state.describe")
        first = self.with_stored_checkpoints(first)
        attempts = {number for found in (first, *others) for number in found["attempts"]}
        living = any(found["running"] for found in (first, *others))
        return {**first, "running": living, "attempts": sorted(attempts)}

    def with_stored_checkpoints(self, described: Mapping[str, Any]) -> dict[str, Any]:
        """What ``runs.run_state.describe`` said on the first host, with the checkpoints that lie elsewhere."""
        return {**described, "checkpoints": self.checkpoint_store.points(described)}

    def attempt_of_migration(self, migration: str) -> dict[str, Any] | None:
        """The newest attempt that the migration ordered, and whether any of its processes lives; None without one."""
        found = [
            each for each in self._ask("runs.run_state.attempt_of_migration", migration=migration) if each is not None
        ]
        newest = max((each["attempt"] for each in found), default=0)
        same = [each for each in found if each["attempt"] == newest]
        return {**same[0], "running": any(each["running"] for each in same)} if same else None

    def running_attempt(self) -> int:
        """The attempt of which a process runs; 0 without one."""
        return max(self._ask("runs.run_state.running_attempt"))

    def verdict(self, attempt: int) -> str:
        """Which process of several failed first and why, in one line; empty where none has, or nobody says."""
        if len(self.target.hosts) == 1:
            return ""
        try:
            return attempt_monitor.verdict(
                attempt_monitor.look_at_ranks(self._hosts, self._ranks(attempt), self.run_id, attempt)
            )
        except HostError:
            return ""

    def check_group(self, attempt: int) -> None:
        """MidstreamError where one of several processes has failed. Process 0, which is watched, may wait minutes for
        one that was gone before they met."""
        said = self.verdict(attempt)
        if said:
            raise MidstreamError(
                f"attempt {attempt} on {self.target.name} failed: {said}",
                f"its logs: {self.paths.attempt(attempt).dir} on {', '.join(self.target.hosts)}",
            )

    def _ranks(self, attempt: int) -> Sequence[Rank]:
        return attempt_monitor.ranks_of(self._hosts, self.first.name, self.run_id, attempt)

    # ------------------------------------------------------------------------------------------ the fence

    def acquire(self, migration: str, epoch: int, holder: str, seconds: float) -> records.Fence:
        """Have the run in hand on every home, or RemoteError, which says who has it. The first host's fence."""
        fence = self._tell("runs.ownership.acquire", migration=migration, epoch=epoch, holder=holder, seconds=seconds)
        return records.Fence.from_json(fence)

    def release(self, migration: str) -> None:
        """End what ``take`` began, and the pin."""
        self.checkpoint_store.unpin(migration)
        self._tell("runs.ownership.release", migration=migration)

    def put_fence(self, fence: Mapping[str, Any], migration: str) -> None:
        """On every home."""
        self._tell("runs.ownership.put_fence", fence=dict(fence), migration=migration)

    def seal(self, migration: str, epoch: int, holder: str, step: int) -> None:
        """Close a run that does not run, on every home."""
        self._tell("runs.ownership.seal", migration=migration, epoch=epoch, holder=holder, sealed_step=step)

    # ------------------------------------------------------------------------------------------ its processes

    def stop(self, attempt: int, timeout: float) -> None:
        """Ask all processes to save at one step boundary and to exit. LaunchError where one died of it, or takes longer
        than ``timeout`` seconds."""
        attempt_monitor.stop_ranks(self._hosts, self._ranks(attempt), self.run_id, attempt, timeout)
        self.wait_exited(attempt)

    def kill(self, attempt: int) -> None:
        """End all processes at once; nothing is saved. LaunchError where one stays."""
        attempt_monitor.kill_ranks(self._hosts, self._ranks(attempt), self.run_id, attempt)
        self.wait_exited(attempt)

    def wait_exited(self, attempt: int) -> None:
        """Positive evidence from every host that none of the attempt's processes runs. LaunchError where one stays,
        HostError where a host does not say."""

        def wait(name: str) -> None:
            host = self._hosts.get(name)
            if attempt in host.call("runs.run_state.describe", root=host.root, run_id=self.run_id)["attempts"]:
                wait_exited(host, self.run_id, attempt)

        self._each(wait, self.target.hosts)

    # ------------------------------------------------------------------------------------------ what each host needs

    def prepared(self, fleet: Fleet) -> Mapping[str, Prepared]:
        """Engine and environment on every host, by its name; put there at the first call. LaunchError, HostError."""
        if self._prepared is None:
            self._prepared = prepare_target(self._hosts, fleet, self.target)
        return self._prepared

    def hand_out(
        self, tree: Callable[[Host], str], progress: Callable[[Progress], None] | None = None, kind: str = CHECKPOINT
    ) -> None:
        """Copy a tree of objects from the first host to every other home. ``tree``: where it lies on a host."""
        others = {host.name: Endpoint(host, tree(host)) for host in self.run_hosts[1:]}
        if others:
            fan_out(self.first, tree(self.first), others, progress=progress, kind=kind)

    def hand_out_checkpoint(self, name: str, progress: Callable[[Progress], None] | None = None) -> None:
        """``hand_out`` of a checkpoint, unless these hosts have saved it: then each has what its processes need."""
        if len(self.run_hosts) > 1 and not self.store:
            path = f"{self.paths.checkpoint(name)}/{records.MANIFEST}"
            manifest = decode_file(self.first.call("runs.run_state.read_text", path=path), f"{self.first.name}: {path}")
            if not manifest.get("hosts"):
                self.hand_out(lambda host: self._paths(host).checkpoint(name), progress)

    def put_config(self, text: str) -> None:
        """Make ``text`` the run's config on every home, before an attempt is started."""
        self._tell("runs.standby_state.put_config", text=text)

    def share_config(self) -> None:
        """Give the first host's config to the other homes."""
        if len(self.run_hosts) > 1:
            text = self.first.call("runs.run_state.read_text", path=self.paths.config)
            for host in self.run_hosts[1:]:
                host.call("runs.standby_state.put_config", root=host.root, run_id=self.run_id, text=text)


def hosts_of_run(fleet: Fleet, source: Host, run: RunView, target: Target) -> tuple[str, ...]:
    """Names of the hosts that carry the run's newest attempt out, that of process 0 first, for a move to ``target``.
    MidstreamError where nobody knows them, UsageError where one is not in the fleet, or in the target."""
    seen = source.call("runs.attempts.attempt", root=source.root, run_id=run.run_id, number=run.attempt)
    names = tuple(seen["group"]) or (source.name,)
    processes = run.status.processes if run.status else 1
    if run.running and not seen["group"] and processes > len(seen["processes"]):
        raise MidstreamError(
            f"run {run.run_id} has {processes} processes, and {source.name} knows of {len(seen['processes'])}: "
            "midstream did not start it",
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
