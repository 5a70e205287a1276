"""True histories of a run's owners, with a copy of every participant at every moment.

The hand-overs are executed by the product's own functions. Engines are written by hand: attempts that have stopped.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from midstream.fleet.fleet_file import load_fleet
from midstream.hosts.host_pool import HostPool
from midstream.launch.launch_ownership import sign_import
from midstream.migrate import migration_process
from midstream.migrate.journal import migration_directory, migration_state
from midstream.migrate.journal.facts import Facts, Sealed
from midstream.migrate.journal.journal import Journal
from midstream.migrate.journal.migration_directory import MigrationDirectory
from midstream.migrate.journal.phase_names import CERTIFY, CUTOVER, DONE, FINISH, PREPARE, RELAUNCH, STARTED
from midstream.migrate.steps.migration import Migration
from midstream.migrate.steps.ownership_records import chain_of_target, hand_over, read_chain
from midstream.ownership import operator_key, signed_chain
from midstream.watch.watcher import Watcher
from midstream_core import records
from simulators.object_stores.bucket import BucketServer
from simulators.object_stores.bucket_objects import Blob
from support.local_fleet import stopped_run
from support.migrations.sample_plan import PLAN, changed
from support.ownership.run_bucket import BUCKET, to_bucket
from support.run_directory import RunDirectory, dead_process

RUN = "solo"
HOSTS = ("one", "two", "three")
OPERATORS = ("ann", "ben")
STRANGER = "eve"  # no fleet file names this operator's key
PARTICIPANTS = (*OPERATORS, *HOSTS)


@dataclass(frozen=True)
class Truth:
    """Owner of a run, and hosts that may train it, at a moment.

    Attributes:
        moment: What has happened last.
        owner: Host of the newest signed record.
        may_train: Hosts that may have an engine, or may get one from a process that needs no further permission.
        epoch: Epoch of the owner.
        records: Length of the signed chain.
        source: Source of the newest migration; empty before the first one.
        settled: No migration is open.
    """

    moment: str
    owner: str
    may_train: tuple[str, ...]
    epoch: int
    records: int
    source: str = ""
    settled: bool = True


@contextmanager
def state(directory: Path) -> Iterator[None]:
    """Be the operator of this state directory."""
    before = os.environ.get("MIDSTREAM_STATE")
    os.environ["MIDSTREAM_STATE"] = str(directory)
    try:
        yield
    finally:
        if before is None:
            del os.environ["MIDSTREAM_STATE"]
        else:
            os.environ["MIDSTREAM_STATE"] = before


def fleet_text(roots: dict[str, Path], keys: list[str], unreachable: tuple[str, ...] = (), store: str = "") -> str:
    lines, where = ["hosts:"], f", store: {store}" if store else ""
    for name, root in roots.items():
        how = "type: ssh, address: 127.0.0.1, port: 1, user: nobody" if name in unreachable else "type: local"
        lines.append(f'  {name}: {{{how}, devices: 2, root: "{root}"{where}}}')
    return "\n".join([*lines, "operators:", *(f"- {key} op{number}" for number, key in enumerate(keys))]) + "\n"


def trained(root: Path, epoch: int, target: str) -> int:
    """Write an attempt of the epoch that has trained four steps and stopped; return its number."""
    paths = records.RunPaths(str(root), RUN)
    run = RunDirectory.__new__(RunDirectory)
    run.paths = paths
    Path(paths.checkpoints).mkdir(exist_ok=True)
    lineage = records.Lineage.read(paths.lineage)
    last = max(entry.last_step or 0 for entry in lineage.entries)
    number = max(int(each.name) for each in Path(paths.attempts).iterdir()) + 1
    given = {"attempt": number, "epoch": epoch, "target": target, "devices": 1, "device_kind": "cpu"}
    entry = records.LineageEntry.from_json({**given, "first_step": last, "last_step": last + 4})
    lineage.with_entry(entry).write(paths.lineage, durable=False)
    run.rows(number, *range(last, last + 4))
    name = run.checkpoint(last + 4, number, epoch)
    Path(paths.checkpoint(name), records.TRAIN).write_text(json.dumps({"state": {"data_digest": "d" * 64}}))
    process = dead_process()
    run.status(number, records.STOPPED, last + 4, process)
    status = records.Status.read(run.attempt(number).status()).to_json()
    records.write_json(run.attempt(number).status(), {**status, "epoch": epoch, "devices": [{"kind": "cpu"}]})
    records.write_json(run.attempt(number).launched(), {**process.to_json(), "argv": []})
    ended = records.ProcessExit(0, 0, 2000.0, state=records.STOPPED, step=last + 4, heartbeat=1999.0)
    ended.write(run.attempt(number).exit())
    return number


@dataclass
class History:
    """One true history below a directory.

    Attributes:
        room: The directory: a state directory for each operator, a root for each host.
        random: Draws the migrations.
        migrations: Operator, target and the step after which it is rolled back (None: it completes); drawn if empty.
        bucket: Has the run's checkpoints, below a prefix of this history; None: they are on the hosts.
        moments: What was true when; `copy_of` has the copies, ``stored`` those of the bucket.
        suspended: Operator, id and process of each migration.
    """

    room: Path
    random: random.Random
    migrations: tuple[tuple[str, str, int | None], ...] = ()
    bucket: BucketServer | None = None
    moments: list[Truth] = field(default_factory=list[Truth])
    stored: list[dict[str, Blob]] = field(default_factory=list[dict[str, Blob]], repr=False)
    suspended: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])  # operator, id, process

    def __post_init__(self) -> None:
        self.roots = {name: self.room / name for name in HOSTS}
        for name in (*PARTICIPANTS, STRANGER):
            (self.room / name).mkdir(parents=True, exist_ok=True)
        self.keys: list[str] = []
        for operator in (*OPERATORS, STRANGER):
            with state(self.room / operator):
                signed_chain.first_chain("other", "one", records.first_fence("one"))  # makes the key
                if operator != STRANGER:
                    self.keys.append(operator_key.public_key())
        self.file = self.room / "fleet.yaml"
        self.store = f"gs://{BUCKET}/{self.room.name}" if self.bucket is not None else ""
        self.file.write_text(fleet_text(self.roots, self.keys, store=self.store))
        self.config = self.room / "config.yaml"
        self._build()

    def copy_of(self, moment: int, participant: str) -> Path:
        return self.room / "moments" / str(moment) / participant

    def put(self, moment: int, participant: str) -> None:
        """Put a participant back to a moment."""
        shutil.rmtree(self.room / participant)
        shutil.copytree(self.copy_of(moment, participant), self.room / participant, symlinks=True)

    def put_bucket(self, moment: int, part: str = "") -> None:
        """Put the bucket back to a moment: all of it, or the objects below ``part`` alone."""
        if self.bucket is None:
            return
        below, objects = f"{self.room.name}/runs/{RUN}/{part}", self.bucket.buckets[BUCKET]
        for name in [name for name in objects if name.startswith(below)]:
            del objects[name]
        objects.update({name: blob for name, blob in self.stored[moment].items() if name.startswith(below)})

    def in_bucket(self) -> tuple[records.Fence | None, list[records.Manifest]]:
        """Return the fence and the manifests in the bucket."""
        blobs = self.bucket.blobs(BUCKET, f"{self.room.name}/runs/{RUN}/") if self.bucket is not None else {}
        fences = [blob for name, blob in blobs.items() if name.endswith("/fence.json")]
        manifests = [blob for name, blob in blobs.items() if name.endswith(records.MANIFEST)]
        fence = records.Fence.from_json(json.loads(fences[0].data)) if fences else None
        return fence, [records.Manifest.from_json(json.loads(blob.data)) for blob in manifests]

    def _commit(self, host: str) -> None:
        """Move the host's new checkpoints to the bucket, where there is one."""
        if self.bucket is not None:
            to_bucket(self.bucket, self.paths(host), self.room.name)

    def paths(self, host: str) -> records.RunPaths:
        return records.RunPaths(str(self.roots[host]), RUN)

    def _snap(self, truth: Truth) -> None:
        number = len(self.moments)
        self.moments.append(truth)
        self.stored.append(self.bucket.blobs(BUCKET, f"{self.room.name}/") if self.bucket is not None else {})
        for name in PARTICIPANTS:
            shutil.copytree(self.room / name, self.copy_of(number, name), symlinks=True)

    def _build(self) -> None:
        run = stopped_run(self.roots["one"])
        run.fence(1, "one")
        shutil.copy(run.paths.config, self.config)
        with state(self.room / "ann"), self.hosts() as hosts:
            sign_import(hosts.get("one"), RUN)
        self._commit("one")
        self._snap(Truth("launched", "one", ("one",), 1, 1))
        for number in range(len(self.migrations) or self.random.randint(1, 3)):
            operator, target, undone = self.migrations[number] if self.migrations else self._drawn()
            self._migrated(f"m{number}", operator, target, undone)

    def _drawn(self) -> tuple[str, str, int | None]:
        operator = self.random.choice(("ann", "ann", "ben"))
        target = self.random.choice([name for name in HOSTS if name != self.moments[-1].owner])
        return operator, target, self.random.randint(0, 3) if self.random.random() < 0.35 else None

    @contextmanager
    def hosts(self) -> Iterator[HostPool]:
        hosts = HostPool(load_fleet(self.file))
        try:
            yield hosts
        finally:
            hosts.close()

    def _migrated(self, migration: str, operator: str, target: str, undone: int | None) -> None:
        """Migrate the run. After step ``undone`` it is rolled back."""
        before = self.moments[-1]
        plan = changed(
            PLAN, migration=migration, run_id=RUN, source=before.owner, source_target=before.owner,
            source_hosts=(before.owner,), source_epoch=before.epoch, epoch=before.epoch + 1, target=target,
            target_host=target, target_hosts=(target,), fleet_file=str(self.file), source_store=self.store,
            target_store=self.store,
        )  # fmt: skip
        with state(self.room / operator), self.hosts() as hosts:
            directory = migration_directory.create(plan, self.file.read_text())
            journal = Journal(directory.journal_file)
            move = Migration(plan, directory, journal, hosts.fleet, hosts, Watcher(hosts.fleet, hosts))
            try:
                for step, (act, truth) in enumerate(self._steps(move, before, target)):
                    act()
                    self._snap(truth)
                    if step == undone:
                        break
                self.suspended.append((operator, migration, move.process))
            finally:
                journal.close()
        if undone is None:
            return
        with state(self.room / operator):
            migration_process.main([migration, "--rollback"])
            view = MigrationDirectory(migration).view()
            assert view.state == migration_state.ROLLED_BACK, (view.state, view.error)
        fence = records.Fence.read(self.paths(before.owner).fence)
        chain = records.OwnershipChain.read(self.paths(before.owner).ownership)
        self._snap(Truth(f"{migration} rolled back", before.owner, (before.owner,), fence.epoch, len(chain.records)))

    def _steps(self, move: Migration, before: Truth, target: str) -> list[tuple[Callable[[], None], Truth]]:
        """Return what a cold migration does, and what is true after each of it."""
        plan, journal, source = move.plan, move.journal, before.owner
        attempt = max(int(each.name) for each in Path(self.paths(source).attempts).iterdir())
        usable = records.Lineage.read(self.paths(source).lineage).entries[-1]
        step, name = usable.last_step or 8, records.checkpoint_name(usable.last_step or 8, attempt)

        def sealed() -> Sealed:
            fence = move.source_group.acquire(plan.migration, plan.epoch, plan.target, 600.0)
            return Sealed(step, name, "d" * 64, attempt, fence)

        def begin() -> None:
            journal.write("phase", phase=PREPARE, state=STARTED)
            journal.write("phase", phase=PREPARE, state=DONE)
            journal.write("phase", phase=CUTOVER, state=STARTED)
            journal.record(Facts(owner_before=source, source_was_running=True, sealing_attempt=attempt))
            read_chain(move)
            move.source_group.acquire(plan.migration, plan.epoch, plan.target, 600.0)
            move.source_group.seal(plan.migration, plan.epoch, plan.target, step)
            journal.record(Facts(sealed=sealed()))

        def permit() -> None:
            hand_over(move, sealed())
            journal.write("phase", phase=CUTOVER, state=DONE)
            journal.write("phase", phase=RELAUNCH, state=STARTED)

        def give() -> None:
            journal.record(Facts(relaunching=True))
            here, there = Path(self.paths(source).dir), Path(self.paths(target).dir)
            kept = ("fence.json", "ownership.json", "migration_lock.json", ".lock")
            for path in here.rglob("*"):
                if path.is_file() and path.name not in kept:
                    place = there / path.relative_to(here)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    with suppress(FileNotFoundError):
                        shutil.copy2(path, place)
            (there / "pins").mkdir(exist_ok=True)
            move.target_group.put_fence(sealed().fence, plan.migration, chain_of_target(move))

        def start() -> None:
            journal.record(Facts(target_attempt=trained(self.roots[target], plan.epoch, target)))
            self._commit(target)

        def end() -> None:
            for phase in (RELAUNCH, CERTIFY, FINISH):
                journal.write("phase", phase=phase, state=DONE)
            journal.write(
                "result", message="", ok=True, exit_code=0, outcome=migration_state.COMPLETED, migration=plan.migration,
                run=RUN,
            )  # fmt: skip

        name_of = f"{plan.migration} {source} -> {target}: ".__add__
        open_ = Truth(name_of("sealed"), source, (), before.epoch, before.records, source, settled=False)
        given = replace(
            open_, moment=name_of("permitted"), owner=target, may_train=(target,), epoch=plan.epoch,
            records=before.records + 1,
        )  # fmt: skip
        return [
            (begin, open_),
            (permit, given),
            (give, replace(given, moment=name_of("target has the fence"))),
            (start, replace(given, moment=name_of("started"))),
            (end, replace(given, moment=name_of("completed"), settled=True)),
        ]


def chain_length(file: Path) -> int:
    """Return the number of records of a chain's file, or of the memory's; 0 where it cannot be read."""
    with suppress(OSError, ValueError, KeyError, records.RecordError):
        value: dict[str, Any] = json.loads(file.read_text())
        return len(value["chain"]["records"] if "chain" in value else value["records"])
    return 0
