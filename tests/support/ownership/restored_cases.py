"""Cases of the restore campaign: execution of a drawn case, and the oracle."""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from midstream import cli
from midstream.errors import MidstreamError
from midstream.hosts.host_pool import HostPool
from midstream.launch import launch_run
from midstream.migrate import executor, migration_process
from midstream.migrate.host_group import HostGroup
from midstream.migrate.journal import migration_directory
from midstream.migrate.journal.journal import Journal
from midstream.migrate.journal.migration_directory import MigrationDirectory
from midstream.migrate.phases import relaunch
from midstream.migrate.steps import source_return
from midstream.migrate.steps.migration import Migration
from midstream.migrate.steps.ownership_records import hand_over, refuse_later_owner
from midstream.ownership import signed_chain
from midstream.watch.watcher import Watcher
from midstream_core import records
from simulators.object_stores.bucket import BucketServer, bucket_server
from support.migrations.campaigns import Case
from support.ownership.histories import HOSTS, RUN, STRANGER, History, chain_length, fleet_text, state, trained
from support.ownership.restored_draws import CLAIMED, HISTORIES
from support.ownership.run_bucket import BUCKET, to_bucket


@dataclass
class Histories:
    """The histories that cases draw from, each built once; and the starts of the case that runs."""

    room: Path
    bucket: BucketServer
    built: dict[int, History] = field(default_factory=dict[int, History])
    starts: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])  # what, host, owner

    def history(self, number: int) -> History:
        if number not in self.built:
            bucket = self.bucket if number >= HISTORIES else None
            self.built[number] = History(self.room / f"h{number}", random.Random(f"history-{number}"), bucket=bucket)
        return self.built[number]


class WouldStartError(MidstreamError):
    """The launch has passed all checks."""


@contextlib.contextmanager
def opened(room: Path) -> Iterator[Histories]:
    """Prepare this process: engines are recorded instead of started."""

    def start(migration: Migration, group: HostGroup, command: records.Command, *, owner: str, at_least: int) -> int:
        host = group.first.name
        made.starts.append(("attempt", host, owner))
        number = trained(Path(group.first.root), command.epoch, owner)
        if group.store:
            to_bucket(made.bucket, records.RunPaths(group.first.root, RUN), group.store.rpartition("/")[2])
        return number

    def prepare(_hosts: HostPool, target: Any, *_: Any) -> Any:
        made.starts.append(("launch", target.hosts[0], target.name))
        raise WouldStartError(f"{target.name} would start {RUN}", "this is a test")

    def spawn(directory: MigrationDirectory, *flags: str) -> None:
        migration_process.main([directory.migration, *flags])

    with pytest.MonkeyPatch.context() as patch, bucket_server(BUCKET) as bucket:
        made = Histories(room, bucket)
        for name, value in bucket.environment.items():
            patch.setenv(name, value)
        for module in (source_return, relaunch):
            patch.setattr(module, "start_attempt", start)
            patch.setattr(module, "wait_training", lambda *_: None)
        patch.setattr(launch_run, "prepare_target", prepare)
        patch.setattr(migration_process, "_spawn", spawn)
        patch.setattr(executor, "MIGRATION", replace(executor.MIGRATION, first_delay=0.01, total_time=0.0))
        patch.setenv("MIDSTREAM_STATE", str(room / "none"))
        yield made


class RestoredCase:
    """One case: `run` executes it and returns its outcome. AssertionError: a promise was broken."""

    def __init__(self, case: Case, histories: Histories) -> None:
        self.case, self.histories, self.history = case, histories, histories.history(case["history"])
        moments = self.history.moments
        self.now = case["now"] % len(moments)
        self.truth = moments[self.now]
        self.back = {name: number % (self.now + 1) for name, number in case["back"].items()}
        self.back = {name: number for name, number in self.back.items() if number < self.now}
        self.unreachable = tuple(case["unreachable"])
        self.liar = ""
        self.adopted: set[str] = set()
        self.codes: list[int] = []

    # ------------------------------------------------------------------------------------------ preparation

    def prepare(self) -> None:
        history, actor = self.history, self.case["actor"]
        for name in (*("ann", "ben"), *HOSTS):
            history.put(self.now, name)
        history.put_bucket(self.now)
        for name, number in self.back.items():
            if name == "bucket":
                history.put_bucket(number, self.case.get("part", ""))
            else:
                history.put(number, actor if name == "operator" else name)
        if self.case["claim"]:
            self._claim(**self.case["claim"])
        text = fleet_text(history.roots, history.keys, self.unreachable, history.store)
        history.file.write_text(text)
        for directory in (history.room / actor / "migrations").glob("*/fleet.yaml"):
            directory.write_text(text)
        migration_directory._CACHED_VIEWS.clear()
        self.histories.starts.clear()

    def _claim(self, kind: str, host: int, owner: bool) -> None:
        """Have a host that may not train claim the run."""
        others = [name for name in HOSTS if name not in (*self.truth.may_train, self.truth.owner)]
        self.liar = others[host % len(others)]
        paths, history = self.history.paths(self.liar), self.history
        if not Path(paths.attempts).is_dir():
            donor = history.copy_of(0, "one") / "runs" / RUN
            shutil.copytree(donor, paths.dir, dirs_exist_ok=True, ignore=shutil.ignore_patterns("fence.json", ".lock"))
        chain = records.OwnershipChain.read_or_none(paths.ownership)
        records.Fence(CLAIMED, self.liar if owner else self.truth.owner, 3, [records.Seal(8, 3).to_json()]).write(
            paths.fence
        )
        if kind == "damaged":
            Path(paths.fence).write_bytes(b"{")
        elif kind == "cut" and chain is not None and len(chain.records) > 1:
            records.OwnershipChain(RUN, chain.records[:-1]).write(paths.ownership)
        elif kind == "spliced" and chain is not None:
            records.OwnershipChain(RUN, [*chain.records, chain.records[0]]).write(paths.ownership)
        elif kind == "replayed":
            with state(history.room / "ann"):
                other = signed_chain.first_chain("other", self.liar, records.Fence(CLAIMED, self.liar))
            records.OwnershipChain(RUN, other.records).write(paths.ownership)
        elif kind == "stranger":
            with state(history.room / STRANGER):
                fence = records.Fence(CLAIMED, self.liar)
                new = (
                    signed_chain.next_chain(chain, epoch=CLAIMED, owner=self.liar, step=8, migration="x")
                    if chain is not None
                    else signed_chain.first_chain(RUN, self.liar, fence)
                )
            new.write(paths.ownership)

    # ------------------------------------------------------------------------------------------ actions

    def run(self) -> str:
        self.prepare()
        before = self._records()
        with state(self.history.room / self.case["actor"]):
            said = [self._act(**action) for action in self.case["actions"]]
        self._check_growth(before)
        return "; ".join(said)

    def _cli(self, *arguments: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main(["--fleet", str(self.history.file), *arguments])
        self.codes.append(code)
        shown = f"{' '.join(arguments)}: exit {code}\n{out.getvalue()[-3000:]}\n{err.getvalue()[-3000:]}"
        assert "Traceback" not in shown, shown
        assert code in range(7), shown
        if code:
            refusal = err.getvalue().strip().splitlines()[-1:]
            if not refusal or not refusal[0].startswith("midstream: "):  # a migration's result is in the output
                refusal = [line for line in out.getvalue().splitlines() if line.startswith(f"{RUN}: ")]
            assert len(refusal) == 1, f"refused without one line: {shown}"
            assert "(" in refusal[0] or "midstream --" in refusal[0], f"no hint: {shown}"
        return code, out.getvalue(), err.getvalue()

    def _act(self, do: str, host: str, number: int, yes: bool, named: bool) -> str:
        consent = ("--yes",) if yes else ()
        recorded = self._in_reach()
        if do == "launch" and named and self.truth.owner:
            host = self.truth.owner
        if do == "launch":
            own = Path(self.history.paths(host).config)  # another one is refused
            flags = (
                "--launch",
                str(own if own.is_file() else self.history.config),
                "--on",
                host,
                "--run-id",
                RUN,
                *consent,
            )
        elif do == "status":
            flags = ("--status",)
        elif do == "stop":
            flags = ("--stop", RUN)
        elif do == "migrate":
            flags = ("--migrate", RUN, "--to", host, "--dry-run", "--json")
        elif do == "repair":
            flags = ("--repair", RUN, *(("--on", host) if named else ()), *consent)
        else:
            ids = migration_directory.migration_ids()
            if not ids:
                return f"{do}: no migration"
            if do == "suspended":
                return self._suspended(sorted(ids)[number % len(ids)], resumed=named)
            flags = ("--rollback", sorted(ids)[number % len(ids)], *consent)
        code, out, err = self._cli(*flags)
        shown = f"{' '.join(flags)}: exit {code}\n{out[-3000:]}\n{err[-3000:]}"
        starts, self.histories.starts[:] = list(self.histories.starts), []
        if do == "repair" and named and yes and code == 0:
            self.adopted.add(host)
        for start in starts:
            self._check_start(start, do, yes, recorded, out + err, shown)
        if do == "status":
            self._check_status(code, out, shown)
        if do == "migrate":
            self._check_plan(out, recorded, shown)
        if self._honest():
            self._check_not_blocked(do, host, code, bool(starts), shown)
        return f"{do} {code}{' starts ' + starts[0][1] if starts else ''}"

    def _suspended(self, migration: str, resumed: bool) -> str:
        """Continue a migration that was sealed: its process was suspended, or a new one has the journal."""
        found = [process for operator, name, process in self.history.suspended
                 if (operator, name) == (self.case["actor"], migration)]  # fmt: skip
        directory = MigrationDirectory(migration)
        journal = Journal(directory.journal_file)
        fleet = directory.fleet()
        hosts = HostPool(fleet)
        recorded = self._in_reach()
        try:
            plan = directory.plan()
            move = Migration(plan, directory, journal, fleet, hosts, Watcher(fleet, hosts))
            if (found or resumed) and move.journal.facts.sealed is not None:
                fence = move.journal.facts.sealed.fence
                if not resumed:
                    move.process = found[0]
                    move.start_allowed_at = 0.0, 0.0  # long ago
                with contextlib.suppress(MidstreamError):
                    if resumed:
                        refuse_later_owner(move, returning=True)
                    hand_over(move, move.journal.facts.sealed)
                    move.target_group.put_fence(fence, plan.migration, None)
                    self.histories.starts.append(("suspended", plan.target_host, plan.target))
        finally:
            hosts.close()
            journal.close()
        starts, self.histories.starts[:] = list(self.histories.starts), []
        for start in starts:
            if start[1] not in self.truth.may_train and self.truth.settled:
                self._check_start(start, "suspended", False, recorded, "", f"suspended {migration}")
        return f"suspended{' starts' if starts else ''}"

    # ------------------------------------------------------------------------------------------ oracle

    def _records(self) -> dict[str, tuple[int, int]]:
        found = {}
        for name in HOSTS:
            paths = self.history.paths(name)
            with contextlib.suppress(records.RecordError, OSError):
                fence = records.Fence.read_or_none(paths.fence)
                found[name] = (fence.epoch if fence else 0, chain_length(Path(paths.ownership)))
        return found

    def _check_growth(self, before: dict[str, tuple[int, int]]) -> None:
        after = self._records()
        for name, (epoch, length) in before.items():
            assert name in after, f"{name} has lost its records"
            assert after[name][0] >= epoch, f"the fence of {name} has fallen from {epoch} to {after[name][0]}"
            if name not in self.adopted and name != self.liar:
                assert after[name][1] >= length, f"the chain of {name} has been shortened"
            if name != self.liar and name not in self.adopted and self.liar:
                assert after[name][0] < CLAIMED, f"{name} has a claim's fence"
            if name in self.unreachable:
                assert after[name] == (epoch, length)

    def _in_reach(self) -> bool:
        """Return whether a participant that the actor reaches has the newest signed record."""
        files = [self.history.room / self.case["actor"] / "ownership" / f"{RUN}.json"]
        files += [
            Path(self.history.paths(name).ownership)
            for name in HOSTS
            if name not in self.unreachable and name != self.liar
        ]
        return any(chain_length(file) >= self.truth.records for file in files)

    def _bucket_shows_owner(self) -> bool:
        """Return whether the bucket shows the ownership of the newest signed record."""
        fence, manifests = self.history.in_bucket()
        shown = [manifest.epoch for manifest in manifests] + ([fence.epoch] if fence is not None else [])
        return max(shown, default=0) >= self.truth.epoch

    def _check_start(
        self, start: tuple[str, str, str], do: str, yes: bool, recorded: bool, said: str, shown: str
    ) -> None:
        """Assert that no start makes a second engine beside one that may train."""
        _, host, _ = start
        if self.adopted:
            return  # a user has named it
        if do == "launch" and host != self.truth.owner and self._bucket_shows_owner():
            agreed = yes and "agreed: " in said
            assert agreed, f"{host} starts, and the bucket shows {self.truth.owner}: {shown}"
        memory = self.history.room / self.case["actor"] / "ownership" / f"{RUN}.json"
        if do == "launch" and not recorded and not memory.is_file() and not Path(self.history.paths(host).dir).exists():
            return  # to this operator the name is new, and the launch has named the hosts that do not answer
        if do == "launch" and host == self.truth.owner and host in self.back:
            self._check_restored_owner(host, yes and "agreed: " in said, recorded, shown)
        for other in self.truth.may_train:
            if other == host:
                continue
            agreed = yes and any("agreed: " in line and other in line for line in said.splitlines())
            if other in self.unreachable:
                if do == "launch":
                    assert agreed, f"{host} starts beside {other}, which does not answer: {shown}"
                elif recorded:
                    raise AssertionError(f"{host} starts beside {other}, which does not answer: {shown}")
            elif (recorded or (do == "launch" and self._bucket_shows_owner())) and other not in self.back:
                fence = records.Fence.read_or_none(self.history.paths(other).fence)
                closed = fence is not None and fence.epoch > self.truth.epoch and fence.owner != other
                assert closed or agreed, f"{host} starts beside {other}, which may train: {shown}"

    def _check_status(self, code: int, out: str, shown: str) -> None:
        assert code == 0, shown
        if not self._in_reach():
            return
        runs = re.search(r"^RUN +HOST .*\n((?:.+\n)*)", out, re.MULTILINE)  # migrations have rows of their own
        for line in runs[1].splitlines() if runs else ():
            if self.liar and re.match(rf"{RUN}\s+{self.liar}\s", line) and self.liar not in self.unreachable:
                assert "(claim)" in line or "(former copy)" in line or "damaged" in line, (
                    f"no claim in its row: {shown}"
                )

    def _check_plan(self, out: str, recorded: bool, shown: str) -> None:
        """Assert that a plan begins at the owner, as far as a participant in reach has its record."""
        plans = [json.loads(line) for line in out.splitlines() if line.startswith('{"event": "plan"')]
        for plan in plans if recorded and not self.adopted else ():
            source = plan["route"]["source"]
            assert source != self.liar, f"planned from a claim: {shown}"
            assert source == self.truth.owner or not self.truth.settled, f"planned from {source}: {shown}"
            self._check_given_up(plan, shown)
        for plan in plans if self._bucket_shows_owner() and self.truth.settled and not self.adopted else ():
            source = plan["route"]["source"]
            assert source == self.truth.owner, f"planned from {source} although the bucket shows more: {shown}"

    def _check_given_up(self, plan: dict[str, Any], shown: str) -> None:
        """Assert that a plan names the steps that the operator has seen and that it gives up."""
        memory, step = self._remembered(), plan["identity"]["checkpoint_step"]
        if memory.get("step") is None or step is None or step >= memory["step"]:
            return
        fence = records.Fence.read(self.history.paths(plan["route"]["source"]).fence)
        named = any("are given up" in line for line in plan["policy"]["consent"])
        assert named or not fence.accepts_epoch(memory["epoch"], memory["step"]), f"steps are given up: {shown}"

    def _remembered(self) -> dict[str, Any]:
        memory = self.history.room / self.case["actor"] / "ownership" / f"{RUN}.json"
        return json.loads(memory.read_text()) if memory.is_file() else {}

    def _check_restored_owner(self, host: str, agreed: bool, recorded: bool, shown: str) -> None:
        """Assert that no acknowledged step of the owner is given up without consent."""
        paths, memory = self.history.paths(host), self.history.room / self.case["actor"] / "ownership" / f"{RUN}.json"
        if recorded and chain_length(Path(paths.ownership)) < self.truth.records:
            assert agreed, f"{host} starts from an older copy: {shown}"
        remembered = json.loads(memory.read_text()) if memory.is_file() else {}
        manifests = [records.Manifest.read(str(each)) for each in Path(paths.checkpoints).glob(f"*/{records.MANIFEST}")]
        manifests += [each for each in self.history.in_bucket()[1] if each.epoch <= self.truth.epoch]
        newest = max((each.step for each in manifests), default=-1)
        if remembered.get("step") is not None and newest < remembered["step"]:
            assert agreed, f"{host} gives up steps {newest} to {remembered['step']}: {shown}"

    def _honest(self) -> bool:
        """Return whether nothing but a claim is wrong."""
        return (
            self.truth.settled and not self.back and not self.unreachable and not self.adopted
            and self.case["actor"] == "ann" and len(self.codes) == 1
        )  # fmt: skip

    def _check_not_blocked(self, do: str, host: str, code: int, started: bool, shown: str) -> None:
        owner = self.truth.owner
        if do == "launch" and host == owner:
            assert started, f"an honest run is blocked: {shown}"
        if do == "launch" and host != owner:
            assert not started, f"a second engine: {shown}"
        if do == "stop":
            assert f"stopped on {owner}" in shown, f"an honest run is blocked: {shown}"
        if do == "migrate" and host != owner and host != self.liar:
            assert code in (0, 3), f"an honest run is blocked: {shown}"
            assert f'"{owner}"' in shown or code == 3, shown
