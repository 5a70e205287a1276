"""The real functions beside the rules of the abstract model: on real files, for one host or one operator's machine."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from midstream.migrate.steps import ownership_records, source_return
from midstream.migrate.steps.migration import MovedOnError, NeedsOperatorError
from midstream.ownership import memory, signed_chain
from midstream_core import records
from midstream_core.attempt import save_fence, start_number
from midstream_host.runs import attempts, ownership
from midstream_host.runs.run_state import RefusedError
from simulation.ownership_rules import Chain, Fence, Host, Link, Lock, Save

RUN = "r"
REFUSALS = (RefusedError, save_fence.FenceRejectedError, records.RecordError)


def real_fence(fence: Fence) -> records.Fence:
    """Return the record of an abstract fence."""
    seals = [records.Seal(*seal).to_json() for seal in fence.seals]
    closed = [records.ClosedStart(*entry).to_json() for entry in fence.starts]
    return records.Fence(fence.epoch, fence.owner, fence.sealed, seals, fence.start, closed)


def abstract_fence(fence: records.Fence | None) -> Fence | None:
    """Return the abstract fence of a record."""
    if fence is None:
        return None
    seals = tuple((seal.epoch, seal.step, seal.alone) for seal in map(records.Seal.from_checked, fence.seals))
    closed = [records.ClosedStart.from_checked(entry) for entry in fence.starts]
    starts = tuple((entry.epoch, entry.start, entry.step) for entry in closed)
    return Fence(fence.epoch, fence.owner, fence.sealed_step, seals, fence.start, starts)


@cache
def real_chain(chain: Chain) -> records.OwnershipChain:
    """Return a signed chain."""
    if len(chain) == 1:
        first = records.Fence(chain[0].epoch, chain[0].owner)
        return signed_chain.first_chain(RUN, chain[0].owner, first, migration="M1", planned=1000.0)
    link = chain[-1]
    return signed_chain.next_chain(
        real_chain(chain[:-1]), epoch=link.epoch, owner=link.owner, step=None, migration=link.migration, planned=1000.0
    )


def abstract_chain(chain: records.OwnershipChain | None) -> Chain:
    """Return the abstract chain of a record."""
    entries = chain.entries if chain is not None else ()
    return tuple(Link(entry.epoch, entry.owner, entry.migration) for entry in entries)


class RealHost:
    """A run directory with the records of an abstract host."""

    def __init__(self, root: Path) -> None:
        self.root, self.name = str(root), root.name
        self.paths = records.RunPaths(self.root, RUN)

    def call(self, function: Callable[..., Any], **_: object) -> Callable[..., Any]:
        """Return a remote function, which runs here."""
        return function

    def write(self, host: Host) -> None:
        """Replace the run directory by one with an abstract host's records."""
        shutil.rmtree(self.paths.dir, ignore_errors=True)
        os.makedirs(self.paths.dir)
        Path(self.paths.config).write_text("config")
        if host.fence is not None:
            real_fence(host.fence).write(self.paths.fence, durable=False)
            Path(self.paths.lineage).write_text("{}")  # written after the first fence
        if host.lock is not None:
            self._write_lock(host.lock)
        if host.chain:
            real_chain(host.chain).write(self.paths.ownership, durable=False)
        engine = host.engine
        if engine is not None:
            attempt = self.paths.attempt(engine.attempt)
            os.makedirs(attempt.dir)
            records.write_json(attempt.launched(0), records.this_process().to_json(), durable=False)
            if host.command is not None:
                self._command(*host.command, sequence=1).write(attempt.command_file, durable=False)

    def _write_lock(self, lock: Lock) -> None:
        expires = time.time() + 1000.0 if lock.valid else 0.0
        record = records.MigrationLock(lock.migration, lock.epoch, lock.owner, expires, lock.allowed, lock.released)
        record.write(self.paths.migration_lock, durable=False)

    @staticmethod
    def _command(action: str, migration: str, epoch: int, owner: str, sequence: int = 0) -> records.Command:
        return records.Command(action, sequence=sequence, epoch=epoch, owner=owner, migration=migration)

    def records(self) -> tuple[Fence | None, Lock | None, Chain]:
        """Return what the run directory has, as abstract values."""
        lock = records.MigrationLock.read_or_none(self.paths.migration_lock)
        shown = None
        if lock is not None:
            valid, allowed = lock.expires > time.time(), lock.start_allowed or ""
            shown = Lock(lock.migration, lock.epoch, lock.owner, allowed, valid, lock.released)
        chain = abstract_chain(records.OwnershipChain.read_or_none(self.paths.ownership))
        return abstract_fence(records.Fence.read_or_none(self.paths.fence)), shown, chain

    def apply(self, rule: str, host: Host, *arguments: Any) -> bool:
        """Make the call of a rule, after `write`; return whether it was answered."""
        try:
            getattr(self, f"_{rule}")(host, *arguments)
        except REFUSALS:
            return False
        return True

    # ------------------------------------------------------------------------------------------ rules

    def _acquire(self, _: Host, migration: str, epoch: int, owner: str) -> None:
        ownership.acquire(self.root, RUN, migration, epoch, owner, 1000.0)

    def _release(self, _: Host, migration: str, epoch: int, owner: str) -> None:
        ownership.release(self.root, RUN, migration, epoch, owner)

    def _send(self, host: Host, action: str, migration: str, epoch: int, owner: str) -> None:
        assert host.engine is not None
        command = self._command(action, migration, epoch, owner).to_json()
        ownership.send_command(self.root, RUN, host.engine.attempt, command)
        written = records.Command.read(self.paths.attempt(host.engine.attempt).command_file)
        assert (written.action, written.migration, written.epoch) == (action, migration, epoch)

    def _seal(self, _: Host, epoch: int, owner: str, step: int, migration: str) -> None:
        ownership.seal(self.root, RUN, epoch, owner, step, migration)

    def _allow_start(self, _: Host, chain: Chain, epoch: int, owner: str, migration: str, process: str) -> None:
        ownership.allow_start(self.root, RUN, real_chain(chain).to_json(), epoch, owner, migration, process)

    def _put_fence(self, _: Host, fence: Fence, migration: str, chain: Chain, process: str | None = None) -> None:
        text = real_chain(chain).to_json() if chain else None
        ownership.put_fence(self.root, RUN, real_fence(fence).to_json(), migration, text, process)

    def _start(self, _: Host, attempt: int, epoch: int, step: int) -> None:
        del step
        os.makedirs(self.paths.attempt(attempt).dir, exist_ok=True)  # the claim
        attempts.start(self.root, RUN, attempt, ["engine"], {}, epoch=epoch)
        assert os.path.exists(self.paths.attempt(attempt).launched(0))

    def _take_number(self, host: Host) -> None:
        assert host.engine is not None

        def newest(fence: records.Fence) -> str | None:
            counting = [save for save in host.saves if fence.accepts(save[1], save[0], save[2])]
            return records.checkpoint_name(max(counting)[0], 1) if counting else None

        taken = start_number.take(self.paths, host.engine.epoch, newest)
        assert abstract_fence(taken) in (None, self.records()[0])

    def _commit(self, host: Host) -> None:
        engine = host.engine
        assert engine is not None
        save_fence.check(self.paths, engine.epoch, engine.step + 1, engine.start or 0)

    def _seal_and_exit(self, host: Host, epoch: int, owner: str) -> None:
        engine = host.engine
        assert engine is not None
        save_fence.seal(self.paths, epoch=epoch, owner=owner, step=engine.step, start=engine.start or 0)


class RealMachine:
    """An operator's machine with both hosts, for the judgements of the abstract model."""

    def __init__(self, directory: Path) -> None:
        self.hosts = {name: RealHost(directory / name) for name in ("A", "B")}

    def judge(self, judgement: str, *arguments: Any) -> Any:
        """Judge by the real function; the result is an abstract value."""
        return getattr(self, f"_{judgement}")(*arguments)

    def _migration(self, source: Host, target: Host, remembered: Chain) -> Any:
        for host, value in zip(self.hosts.values(), (source, target), strict=True):
            host.write(value)
        memory.memory_file(RUN).unlink(missing_ok=True)
        if remembered:
            memory.remember(real_chain(remembered))
            assert abstract_chain(memory.recall(RUN).chain) == remembered  # type: ignore[union-attr]
        a, b = self.hosts.values()
        saves = [SimpleNamespace(complete=True, epoch=save[1], step=save[0], accepted=False) for save in source.saves]
        describe = lambda: SimpleNamespace(checkpoints=saves)  # noqa: E731
        return SimpleNamespace(
            plan=SimpleNamespace(run_id=RUN, migration="M1", epoch=2, source_epoch=1, source="A", target="B"),
            fleet=SimpleNamespace(hosts=("A", "B"), operators=()),
            hosts=self.hosts,
            source=a,
            source_group=SimpleNamespace(first=a, run_id=RUN, describe=describe),
            target_group=SimpleNamespace(first=b, run_id=RUN),
            journal=SimpleNamespace(facts=SimpleNamespace(owner_before="A")),
            process="r",
        )

    def _later_owner(self, one: Chain, two: Chain, remembered: Chain, returning: bool) -> bool:
        migration = self._migration(Host(chain=one), Host(chain=two), remembered)
        try:
            ownership_records.refuse_later_owner(migration, returning=returning)
        except MovedOnError:
            return True
        return False

    def _known_chain(self, one: Chain, two: Chain, remembered: Chain) -> Chain | None:
        migration = self._migration(Host(chain=one), Host(chain=two), remembered)
        try:
            return abstract_chain(ownership_records._known_chain(migration))
        except NeedsOperatorError:
            return None

    def _returned_fence(self, fence: Fence, saves: tuple[Save, ...]) -> Fence | None:
        migration = self._migration(Host(fence, saves=saves), Host(), ())
        try:
            return abstract_fence(source_return.returned_fence(migration, real_fence(fence)))
        except MovedOnError:
            return None

    def _may_have_started(self, lock: Lock | None, remembered: Chain, process: str) -> bool:
        migration = self._migration(Host(lock=lock), Host(), remembered)
        migration.process = process
        return ownership_records.may_have_started(migration)
