"""A world of simulated machines with the real midstream in it: an operator, hosts, a run that trains."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from midstream_core import records
from simulation import buckets, checkpoints, clusters, engine, groups, links
from simulation.disks import Disk
from simulation.history import HISTORY, Commit
from simulation.machines import Machine, SimulatedProcess
from simulation.scheduler import SCHEDULER

RUN = "r"
HOSTS = ("one", "two", "three", "four")
PAIR = ("two", "four")  # hosts of a group that share the root of the first
CLAIMED = 9  # epoch of a fence that a machine claims
OTHER = "r-r"  # a run on the same roots that no command names
AHEAD = (0.0, 0.0, 0.0, 0.3, -0.3, 50.0, -50.0, 90000.0)  # seconds of a clock before the true time
NEAR = (0.0, 0.3, -0.3, 2.0)  # the same, of a cluster's node before its login node
JUMPS = (0.0, 0.0, 0.0, 2.0, -2.0, 500.0, -500.0, 90000.0, -90000.0)  # seconds by which a clock jumps at a reboot
WATCH_INTERVAL = 5.0  # seconds between two polls of a host


@dataclass
class World:
    """Machines below ``directory``, links between them, and what the operators' commands printed."""

    directory: str
    seed: int = 0
    bucket: buckets.Bucket | None = None  # of the run's checkpoints; None: they are on the hosts' disks
    target: str = "two"  # of migrations: a host, the group of `PAIR`, or the cluster
    cluster: clusters.Cluster | None = None
    network: links.Network = field(init=False)
    machines: dict[str, Machine] = field(default_factory=dict)
    said: list[tuple[str, int, str]] = field(default_factory=list)  # command, exit code, output
    answered: list[SimulatedProcess] = field(default_factory=list)  # the commands' processes
    troubled: bool = False  # whether a machine or link failed when the newest command ended
    trained: bool = False  # whether the run trained then
    struck: list[str] = field(default_factory=list)  # faults that have happened
    restored: bool = False  # whether a root was put back
    journal_lines: int = 0
    other: dict[str, str] = field(default_factory=dict)  # file of the other run -> digest
    completed: list[str] = field(default_factory=list)  # migrations that ended as completed and were not
    _kept: int = 0
    dice: random.Random = field(init=False)  # draws what faults do
    at_line: Callable[[int, bool], None] = lambda number, after: None

    def __post_init__(self) -> None:
        self.network = links.Network(self.machines)
        self.dice = random.Random(f"world {self.seed}")
        if self.target == clusters.TARGET:
            self.cluster = clusters.Cluster(self)
        for name in ("operator", *HOSTS, *(clusters.NODES[1:] if self.cluster else ())):
            path = os.path.join(self.directory, name)
            os.makedirs(path, exist_ok=True)
            self.machines[name] = machine = Machine(name, path)
            kept = os.path.join(self.directory, f"kept.{name}")
            os.makedirs(kept)
            states = (os.path.join(self.directory, "state"),) if name == "operator" else ()
            machine.disk = Disk((path, *states), kept)
            machine.disk.random.seed(f"disk {self.seed} {name}")
            if name in (*PAIR, *clusters.NODES) and name != PAIR[0]:
                machine.activity = self.machines[PAIR[0]].activity
            machine.activity.timed |= self.cluster is not None
            machine.ahead, machine.rate = self.dice.choice(AHEAD), 1.0 + self.dice.choice((0.0, 2e-4, -2e-4))
        if self.cluster is not None:  # munge, by which SLURM authenticates, refuses clocks that differ by minutes
            login = self.machines[clusters.LOGIN]
            for machine in map(self.machines.__getitem__, clusters.NODES):
                machine.ahead, machine.rate = login.ahead + self.dice.choice(NEAR), login.rate
        self.fleet_file = os.path.join(self.directory, "fleet.yaml")
        hosts = {
            name: {"type": "ssh", "address": name, "root": self.root(name), "python": "/usr/bin/python3", "devices": 1}
            for name in HOSTS
        }
        fleet: dict[str, Any] = {"hosts": hosts}
        if self.bucket is not None:
            fleet["stores"] = {"all": {"url": buckets.URL}}
            for entry in hosts.values():
                entry["store"] = "all"
        fleet["targets"] = {"pair": {"type": "hosts", "hosts": list(PAIR), "shared_root": self.root("two")}}
        if self.cluster is not None:
            fleet["targets"][clusters.TARGET] = {"type": "slurm", "host": clusters.LOGIN, "sbatch": ["--nodes=1"]}
        Path(self.fleet_file).write_text(yaml.safe_dump(fleet))
        WORLDS.append(self)

    @property
    def behind_target(self) -> tuple[str, ...]:
        """Machines of the target, the one that has its root first."""
        if self.cluster is not None:
            return clusters.LOGIN, *clusters.NODES
        return PAIR if self.target == "pair" else (self.target,)

    def root(self, name: str) -> str:
        return os.path.join(self.directory, PAIR[0] if name in (*PAIR, *clusters.NODES) else name, "root")

    def paths(self, name: str) -> records.RunPaths:
        return records.RunPaths(self.root(name), RUN, buckets.URL if self.bucket is not None else "")

    def bucket_here(self) -> buckets.Bucket:
        assert self.bucket is not None, "this world has no bucket"
        return self.bucket

    # ------------------------------------------------------------------------------------------ operators

    def command(self, *words: str, state: str = "state") -> SimulatedProcess:
        """Start a command of the operator; its exit code and output go to ``said``."""
        from midstream import cli

        output = bytearray()
        environment = {
            "MIDSTREAM_STATE": os.path.join(self.directory, state), "MIDSTREAM_FLEET": self.fleet_file, "TERM": "dumb",
        }  # fmt: skip
        process = SimulatedProcess(
            self.machines["operator"], lambda: cli.main(list(words)), shlex.join(words), environment, output.extend
        )
        process.stderr._write = output.extend

        def note() -> None:
            process.ended.wait()
            code = process.exit_code if process.exit_code is not None else -1
            self.said.append((shlex.join(words), code, bytes(output).decode() + process.errors.decode()))
            self.answered.append(process)
            self.troubled, self.trained = not self.healthy(), len(self.trains()) == 1

        SCHEDULER.start(note, None, "note")
        return process

    # ------------------------------------------------------------------------------------------ engines

    def _config(self, host: str) -> dict[str, Any]:
        settings = config(self.root(host))
        if self.bucket is not None:
            settings["trainer"]["checkpointer"] = {"base_path": buckets.URL}
        return settings

    def begin_run(self, host: str, steps: int) -> None:
        """Have a run train on a host until it has done some steps."""
        paths = self.paths(host)
        os.makedirs(paths.attempts, exist_ok=True)
        records.write_bytes(paths.config, yaml.safe_dump(self._config(host)).encode(), mode=0o600)
        os.makedirs(paths.attempt(1).dir)
        environment = {
            "MIDSTREAM_ROOT": self.root(host), "RUN_ID": RUN, "MIDSTREAM_ATTEMPT": "1", "MIDSTREAM_EPOCH": "1",
            "MIDSTREAM_TARGET": host, "MIDSTREAM_HOST": host,
        }  # fmt: skip
        process = start_engine(self.machines[host], environment, paths.attempt(1).dir, paths.attempt(1).log(0))
        records.write_json(paths.attempt(1).launched(0), {**identity_of(process).to_json(), "argv": ["train"]})
        self.run_until(lambda: (status := self.status(host)) is not None and status.step >= steps, watched=True)

    def boot(self, machine: Machine) -> None:
        """Start a machine again; its clock may jump."""
        jump = self.dice.choice(JUMPS)
        near = self.cluster is not None and machine.name in self.behind_target
        machine.boot(0.0 if near and abs(jump) > max(NEAR) else jump)

    def keep_root(self, host: str) -> str:
        """Copy a host's root, as a snapshot does; return where the copy is."""
        self._kept += 1
        kept = os.path.join(self.directory, f"snapshot.{self._kept}")
        if os.path.isdir(self.root(host)):
            shutil.copytree(self.root(host), kept)
        return kept

    def restore_root(self, host: str, kept: str) -> int:
        """Put a copy of a host's root back. Return how many of the newest commits no machine has any more."""
        self.restored = True
        shutil.rmtree(self.root(host), ignore_errors=True)
        if os.path.isdir(kept):
            shutil.copytree(kept, self.root(host))
        commits, count = HISTORY.commits, 0
        while commits and not any(self._has(name, commits[-1]) for name in self.machines):
            HISTORY.lost.append(commits.pop())
            count += 1
        return count

    def _has(self, host: str, commit: Commit) -> bool:
        return any(
            (manifest.step, manifest.epoch, manifest.start) == (commit.step, commit.epoch, commit.start)
            for manifest in self.manifests(host)
        )

    def manifests(self, host: str) -> list[records.Manifest]:
        """Return the manifests that a host has, or the bucket."""
        if self.bucket is not None:
            texts = [data for key, (data, _) in self.bucket.objects.items() if _is_manifest(key)]
        else:
            found = Path(self.paths(host).checkpoints).glob(f"*/{records.MANIFEST}")
            texts = [path.read_bytes() for path in found if _is_manifest(str(path))]
        parsed = [records.parse_json(text, host) if text.strip(b"\0") else None for text in texts]
        return [records.Manifest.from_json(value, host) for value in parsed if value is not None]

    def begin_other(self) -> None:
        """Put a run that has stopped on the roots of both hosts: nothing may touch it."""
        for host in ("one", "two"):
            paths = records.RunPaths(self.root(host), OTHER)
            files = paths.attempt(1)
            os.makedirs(files.dir)
            settings = {**config(self.root(host)), "trainer": {**config(self.root(host))["trainer"], "id": OTHER}}
            records.write_bytes(paths.config, yaml.safe_dump(settings).encode(), mode=0o600)
            checkpoints.write_checkpoint(paths, 1, 1, 1, 7, settings)
            records.Fence(1, host, start=1).write(paths.fence)
            records.Status(
                records.STOPPED, 7, 0, heartbeat=0.0, run_id=OTHER, attempt=1, epoch=1, start=1,
                boot_id=f"{host}-boot-0", pid=7, start_ticks=7, machine=f"machine-{host}",
            ).write(files.status(0))  # fmt: skip
        self.other = self.digest_of_other()

    def digest_of_other(self) -> dict[str, str]:
        """Return the digest of each file of the run that nothing may touch."""
        digests = {}
        for host in ("one", "two"):
            directory = records.RunPaths(self.root(host), OTHER).dir
            for where, _, names in os.walk(directory):
                for name in names:
                    data = Path(where, name).read_bytes()
                    digests[f"{host} {os.path.relpath(os.path.join(where, name), directory)}"] = _sha256(data)
        return digests

    def status(self, host: str) -> records.Status | None:
        """Return the newest attempt's status on a host, as its file says; None if it is damaged."""
        try:
            numbers = sorted(int(name) for name in os.listdir(self.paths(host).attempts) if name.isdecimal())
        except FileNotFoundError:
            return None
        for number in reversed(numbers):
            try:
                if status := records.Status.read_or_none(self.paths(host).attempt(number).status(0)):
                    return status
            except records.DamagedRecordError:
                return None
        return None

    def fence(self, host: str) -> records.Fence | None:
        return records.Fence.read_or_none(self.paths(host).fence)

    def trains(self) -> list[str]:
        """Return the machines on which an engine trains."""
        return [
            process.machine.name for process in HISTORY.training if process.exit_code is None and process.held is None
        ]

    def note_completed(self, migration: str, directory: Path) -> None:
        """Note a migration that ends as completed while the newest fence names another owner than its target."""
        target = json.loads((directory / "plan.json").read_text())["route"]["target"]
        fences = [fence for name in self.machines if (fence := self.fence(name)) is not None and fence.epoch < CLAIMED]
        owner = max(fences, key=lambda fence: fence.order).owner if fences else ""
        if owner != target:
            self.completed.append(f"{migration} ended as completed, and the newest fence names {owner}")
        if self.restored:  # what a rollback had written may have been on a disk that was put back
            return
        for lines in Path(self.directory).glob(f"state*/migrations/{migration}/journal.jsonl"):
            if lines.parent != directory and b'"outcome": "rolled back"' in lines.read_bytes():
                self.completed.append(f"{migration} ended as completed, and a copy of its files as rolled back")

    def healthy(self) -> bool:
        """Return whether all machines are up, can be reached and have space, and SLURM follows commands."""
        stored = self.bucket is None or self.bucket.reachable
        obeys = self.cluster is None or not (self.cluster.hangs or self.cluster.busy)
        return (
            stored and obeys and not self.network.cut and all(one.up and not one.full for one in self.machines.values())
        )

    def wait(self, command: SimulatedProcess) -> tuple[int, str]:
        """Wait for the end of a command; return its exit code and output."""
        self.run_until(lambda: command in self.answered)
        _, code, text = self.said[self.answered.index(command)]
        return code, text

    def run_until(self, reached: Callable[[], bool], *, watched: bool = False) -> None:
        """Let the world go on until the condition holds. ``watched``: it looks at what engines write."""
        SCHEDULER.run(reached, watched=watched)

    def run_for(self, seconds: float) -> None:
        """Let the world go on for some virtual seconds."""
        end = SCHEDULER.now + seconds
        done: list[bool] = []

        def wait() -> None:
            SCHEDULER.park(end - SCHEDULER.now)
            done.append(True)

        SCHEDULER.start(wait, None, "clock")
        SCHEDULER.run(lambda: bool(done))


WORLDS: list[World] = []  # the newest one is the present one


def start_engine(
    machine: Machine, environment: Mapping[str, str], directory: str, log: str, rank: int = 0, number: int = 1
) -> SimulatedProcess:
    """Start an engine, or a further process of one, with its log and its exit record."""

    def write(data: bytes) -> None:
        append(Path(log), data)

    environment = {**environment, groups.RANK: f"{rank}/{number}"}
    run = groups.main if rank else engine.main
    argv = ["engine", directory, str(rank)]
    if any(running.argv == argv for running in machine.processes.values()):
        HISTORY.doubles.append(f"{machine.name} {directory}")
    process = SimulatedProcess(machine, run, f"engine {directory[-3:]}", environment, write, argv)
    process.stderr._write = write
    groups.join(directory, rank, process)

    def supervise() -> None:
        process.ended.wait()
        if machine.up and machine.booted <= SCHEDULER.now:
            SimulatedProcess(machine, lambda: engine.record_exit(directory, process.exit_code or 0, rank), "supervisor")

    SCHEDULER.start(supervise, None, f"supervisor {directory[-3:]}")
    return process


def _is_manifest(path: str) -> bool:
    name, _, file = path.rpartition("/")
    return file == records.MANIFEST and records.parse_checkpoint_name(name.rpartition("/")[2]) is not None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def identity_of(process: SimulatedProcess) -> records.ProcessIdentity:
    machine = process.machine
    return records.ProcessIdentity(
        machine.boot_id, process.pid, process.start_ticks, f"machine-{machine.name}", "pid:[1]"
    )


def append(path: Path, data: bytes) -> None:
    """Append to a log; on a full disk the line is lost."""
    with contextlib.suppress(OSError), open(path, "ab") as file:
        file.write(data)


def config(root: str) -> dict[str, Any]:
    """Return a run's config, as far as the app reads it."""
    return {
        "data": {"tokenizer": "gpt2"},
        "model": {"type": "gpt2", "seq_len": 16, "hidden_dim": 32, "num_layers": 1},
        "optimizer": {"type": "adam", "learning_rate": 1e-3},
        "trainer": {"id": RUN, "root": root, "num_train_steps": engine.STEPS, "train_batch_size": 4, "mp": "f32"},
    }
