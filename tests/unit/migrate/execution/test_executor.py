"""Failures of phases: rollback, interruption, exit codes.

Only the phases are stand-ins.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from midstream.errors import ConnectionLostError, Exit, HostError, MidstreamError, UsageError
from midstream.fleet.fleet_file import load_fleet
from midstream.hosts.host import Process
from midstream.hosts.host_pool import HostPool
from midstream.hosts.rpc.remote_call import open_waiting_call
from midstream.migrate import executor, migration_process
from midstream.migrate.journal import migration_directory, migration_state, phase_names
from midstream.migrate.journal.certificate import Certificate
from midstream.migrate.journal.facts import Facts
from midstream.migrate.journal.journal import Journal, JournalError
from midstream.migrate.phases.certify import Certify, NotCertifiedError, NotProvenError
from midstream.migrate.phases.cutover import Cutover
from midstream.migrate.phases.relaunch import Relaunch
from midstream.migrate.proof import certificate_page
from midstream.migrate.steps.migration import Migration, NeedsOperatorError
from midstream.migrate.steps.preemption import PreemptedError
from midstream.watch.watcher import Watcher
from midstream_core import records
from midstream_host.runs import ownership
from support.migrations.sample_plan import PLAN, SEALED, changed
from support.run_directory import RunDirectory


class Step:
    """A phase that calls a function."""

    def __init__(self, name: str, act: Callable[[], None] = lambda: None) -> None:
        self.name, self.act = name, act
        self.runs = 0

    def run(self, _migration: Migration) -> None:
        self.runs += 1
        self.act()


def raising(*errors: Exception) -> Callable[[], None]:
    """Return a function that raises the errors one after another, then none."""
    left = list(errors)

    def act() -> None:
        if left:
            raise left.pop(0)

    return act


@pytest.fixture
def migration(tmp_path: Path) -> Migration:
    """Create a migration that is sealed at step 7."""
    made = unsealed(tmp_path)
    made.journal.record(Facts(sealed=SEALED))
    paths = made.source_paths
    ownership.acquire(root=paths.root, run_id="r", migration="m", epoch=2, owner="b", seconds=60.0)
    ownership.seal(root=paths.root, run_id="r", epoch=2, owner="b", sealed_step=7, migration="m")
    return made


def unsealed(tmp_path: Path) -> Migration:
    file = tmp_path / "fleet.yaml"
    file.write_text("".join(["hosts:\n", *(f'  {n}: {{type: local, root: "{tmp_path}/{n}"}}\n' for n in ("a", "b"))]))
    fleet = load_fleet(file)
    RunDirectory(tmp_path / "a", "r").fence(1, "a")
    directory = migration_directory.create(changed(PLAN, migration="m"), fleet.text)
    journal = Journal(directory.journal_file)
    hosts = HostPool(fleet)
    return Migration(PLAN, directory, journal, fleet, hosts, Watcher(fleet, hosts))


def carry_out(
    migration: Migration, monkeypatch: pytest.MonkeyPatch, *steps: Step | Relaunch | Cutover, rollback: bool = False
) -> Exit:
    monkeypatch.setattr(executor, "phases", lambda: steps)
    return executor.execute(migration, rollback=rollback)


def test_failure_before_the_certificate_is_rolled_back(migration: Migration, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Step(phase_names.CUTOVER, raising(MidstreamError("the disk is full", "make room")))
    assert carry_out(migration, monkeypatch, failing) == Exit.FAILED
    view = migration.directory.view()
    assert (view.state, view.error) == (migration_state.ROLLED_BACK, "the disk is full (make room)")


def test_failure_beside_a_copy_that_trains_rolls_nothing_back(
    migration: Migration, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process of a copied state directory has started the target; this one slept, and fails at what the other did.

    On the old code it rolled back the run that the other had certified, and gave up its steps.
    """
    there = RunDirectory(tmp_path / "b", "r")
    records.Command(records.RESTORE, 2, migration="m").write(there.attempt(2).command_file)
    records.Status(
        records.TRAINING, 11, 0, heartbeat=1.0, run_id="r", attempt=2, epoch=2, **records.this_process().to_json()
    ).write(there.attempt(2).status())
    failing = Step(phase_names.CUTOVER, raising(MidstreamError("attempt 2 of r runs here already")))
    assert carry_out(migration, monkeypatch, failing) == Exit.INTERRUPTED
    view = migration.directory.view()
    assert view.state == migration_state.INTERRUPTED
    assert "midstream --continue m continues it from there" in view.error


def test_failure_while_the_target_trains_gives_up_no_steps(
    migration: Migration, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The source's disk is full when a process continues: on the old code it rolled back what the target had done."""
    there = RunDirectory(tmp_path / "b", "r")
    records.Command(records.RESTORE, 2, migration="m").write(there.attempt(2).command_file)
    records.Status(
        records.TRAINING, 11, 0, heartbeat=1.0, run_id="r", attempt=2, epoch=2, **records.this_process().to_json()
    ).write(there.attempt(2).status())
    records.write_json(there.attempt(2).launched(), {**records.this_process().to_json(), "argv": []})
    migration.journal.record(Facts(relaunching=True, target_attempt=2))
    failing = Step(phase_names.RELAUNCH, raising(MidstreamError("a: no space left on device")))
    assert carry_out(migration, monkeypatch, failing) == Exit.INTERRUPTED
    assert "midstream --rollback m --yes goes back to step 7" in migration.directory.view().error


def test_failure_with_a_lost_seal_gives_up_no_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its facts were established again from hosts of which one had lost its seal: nothing shows that none trains."""
    migration = unsealed(tmp_path)
    migration.journal.record(Facts(relaunching=True, reestablished_at=1.0))
    failing = Step(phase_names.RELAUNCH, raising(MidstreamError("a: no space left on device")))
    assert carry_out(migration, monkeypatch, failing) == Exit.INTERRUPTED


def test_preempted_target_is_rolled_back_without_a_question(
    migration: Migration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its provider reports that what it had is lost: waiting for a user would cost time alone."""
    migration.journal.record(Facts(relaunching=True))
    monkeypatch.setattr(executor, "_may_go_on", lambda _: True)  # it does not answer
    failing = Step(phase_names.CERTIFY, raising(PreemptedError("b was preempted")))
    assert carry_out(migration, monkeypatch, failing) == Exit.FAILED
    assert migration.directory.view().state == migration_state.ROLLED_BACK


@pytest.mark.parametrize(
    "error", [MidstreamError("the disk is full"), NeedsOperatorError("no contact", "--continue m")]
)
def test_calls_prepared_by_a_failed_phase_are_closed(
    migration: Migration, monkeypatch: pytest.MonkeyPatch, error: MidstreamError
) -> None:
    host = migration.hosts.get("a")
    opened: Future[Process] = Future()
    opened.set_result(open_waiting_call(host, ownership.migration_lock))

    def prepare_and_fail() -> None:
        migration.prepared_calls._waiting["a", ownership.migration_lock] = opened
        raise error

    assert carry_out(migration, monkeypatch, Step(phase_names.CUTOVER, prepare_and_fail)) != Exit.DONE
    assert opened.result().stdin.closed
    assert opened.result().wait(60) == 0, "it has ended without arguments"


@pytest.mark.parametrize("before_the_result", [True, False])
def test_completed_migration_keeps_no_late_rollback(
    migration: Migration, monkeypatch: pytest.MonkeyPatch, before_the_result: bool
) -> None:
    """It would be carried out if the journal were damaged later."""
    real, seen = executor._result, []

    def result(*arguments: Any) -> Exit:
        seen.append(migration.directory.rollback_requested())
        if not before_the_result:
            migration.directory.request_rollback()
        return real(*arguments)

    monkeypatch.setattr(executor, "_result", result)
    last = Step(phase_names.FINISH, migration.directory.request_rollback if before_the_result else lambda: None)
    assert carry_out(migration, monkeypatch, last) == Exit.DONE
    assert (seen, migration.directory.rollback_requested()) == ([False], False)


def test_failure_after_the_certificate_interrupts(migration: Migration, monkeypatch: pytest.MonkeyPatch) -> None:
    proof = Certificate("m", "r", "a", "b", 7, "step-7-a001", "d", 2, (), 0.0).to_json()
    issue = Step(phase_names.CERTIFY, lambda: records.write_json(str(migration.directory.certificate_file), proof))
    steps = (issue, Step(phase_names.FINISH, raising(MidstreamError("no word from the target"))))
    assert carry_out(migration, monkeypatch, *steps) == Exit.INTERRUPTED
    view = migration.directory.view()
    assert view.state == migration_state.INTERRUPTED
    assert "midstream --continue m" in view.error
    assert "midstream --rollback m --yes goes back to step 7 on a" in view.error
    assert not any(event.phase == phase_names.ROLLBACK for event in view.events)
    assert carry_out(migration, monkeypatch, *steps) == Exit.DONE
    assert (steps[0].runs, steps[1].runs) == (1, 2)


def test_failed_certificate_has_its_exit_code(migration: Migration, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        carry_out(migration, monkeypatch, Step(phase_names.CERTIFY, raising(NotCertifiedError("no"))))
        == Exit.NOT_CERTIFIED
    )
    assert executor.execute(migration) == Exit.NOT_CERTIFIED, "it has ended; a later process gets the same code"
    assert executor.execute(migration, rollback=True) == Exit.NOT_CERTIFIED


def test_missing_evidence_gives_up_no_step(migration: Migration, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its user goes on without it; where the target shows that it has done nothing, the source continues."""
    migration.journal.record(Facts(relaunching=True))
    shows: list[bool] = [True]
    monkeypatch.setattr(executor, "_may_go_on", lambda _: shows.pop())
    step = Step(phase_names.CERTIFY, raising(*(NotProvenError("data", "midstream --continue m --yes") for _ in "ab")))
    assert carry_out(migration, monkeypatch, step) == Exit.INTERRUPTED
    assert "midstream --continue m --yes" in migration.directory.view().error
    shows.append(False)
    assert carry_out(migration, monkeypatch, step) == Exit.NOT_CERTIFIED


def test_unexpected_error_is_one_line_and_rolled_back(migration: Migration, monkeypatch: pytest.MonkeyPatch) -> None:
    assert carry_out(migration, monkeypatch, Step(phase_names.RELAUNCH, raising(KeyError("surprise")))) == Exit.FAILED
    events = migration.directory.view().events
    assert [event.message for event in events if event.state == phase_names.FAILED] == ["KeyError: 'surprise'"]
    assert any(event.event == "trace" and "Traceback" in event.message for event in events)


def test_lost_connection_repeats_the_phase(migration: Migration, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = [ConnectionLostError(f"cut {number}") for number in range(executor.MAX_DISCONNECTS + 1)]
    step = Step(phase_names.CUTOVER, raising(*cut[:-1]))
    assert carry_out(migration, monkeypatch, step) == Exit.DONE
    assert step.runs == executor.MAX_DISCONNECTS + 1


@pytest.mark.parametrize("started", [True, False], ids=["target may train", "target not started"])
def test_connection_that_fails_once_discards_no_step(
    migration: Migration, monkeypatch: pytest.MonkeyPatch, started: bool
) -> None:
    """On the old code a source that was away for five seconds, after the target trained, rolled the target back."""
    if started:
        migration.journal.record(Facts(relaunching=True))
    certify = Step(phase_names.FINISH, raising(HostError("a: no connection within 10 s", "is the host up?")))
    code = carry_out(migration, monkeypatch, certify)
    assert (code, certify.runs) == ((Exit.DONE, 2) if started else (Exit.FAILED, 1))


def test_too_many_lost_connections_fail_the_phase(migration: Migration, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = [ConnectionLostError(f"cut {number}") for number in range(executor.MAX_DISCONNECTS + 1)]
    assert carry_out(migration, monkeypatch, Step(phase_names.CUTOVER, raising(*cut))) == Exit.FAILED


def without_output() -> Step:
    """Return a cutover whose host never answers."""
    return Step(
        phase_names.CUTOVER,
        raising(*(ConnectionLostError("a: lost contact") for _ in range(executor.MAX_DISCONNECTS + 1))),
    )


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (Facts(), "r was not commanded to stop, and stays on a"),
        (Facts(stop_commanded_at=1.0), "a was commanded to stop, and whether it has stopped is not known"),
        (Facts(sealed=SEALED, relaunching=True), "r was stopped at step 7 for good, and b may be training it"),
    ],
)
def test_lost_contact_interrupts_without_rollback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: Facts, message: str
) -> None:
    migration = unsealed(tmp_path)
    if facts:
        migration.journal.record(facts)
    assert carry_out(migration, monkeypatch, without_output()) == Exit.INTERRUPTED
    view = migration.directory.view()
    assert view.state == migration_state.INTERRUPTED
    assert message in view.error
    assert "midstream --continue m continues it when the host answers" in view.error
    assert not any(event.phase == phase_names.ROLLBACK for event in view.events)
    assert carry_out(migration, monkeypatch, Step(phase_names.CUTOVER)) == Exit.DONE, "the printed command works"


def test_unreachable_host_interrupts_the_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    migration = unsealed(tmp_path)
    reached: list[bool] = []
    monkeypatch.setattr(executor, "MIGRATION", replace(executor.MIGRATION, first_delay=0.0, total_time=0.0))
    monkeypatch.setattr(executor, "_all_reachable", lambda _: bool(reached))
    step = Step(phase_names.CUTOVER, raising(HostError("a: cannot be reached", "is the machine up?")))
    assert carry_out(migration, monkeypatch, step) == Exit.INTERRUPTED
    assert "a: cannot be reached; r was not commanded to stop" in migration.directory.view().error


def test_rollback_reports_that_nothing_is_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source host was rebooted before the first checkpoint."""
    migration = unsealed(tmp_path)
    run = RunDirectory(tmp_path / "other", "r")  # for its methods; the directory on `a` exists
    run.paths = records.RunPaths(str(tmp_path / "a"), "r")
    run.status(1, records.TRAINING, 9, records.ProcessIdentity("another boot", 1, 1))
    Path(run.paths.config).write_text("trainer: {id: r}\n")
    assert carry_out(migration, monkeypatch, Step(phase_names.CUTOVER, raising(MidstreamError("no checkpoint")))) == (
        Exit.NOT_RUNNING
    )
    view = migration.directory.view()
    assert view.state == migration_state.ROLLED_BACK
    assert view.error.startswith(
        "no checkpoint; r does not run on a: its process has exited (last status: training at step"
    )
    assert "midstream --restart r starts it there at step 0" in view.error
    assert executor.execute(migration) == Exit.NOT_RUNNING, "it has ended; a later process gets the same code"


def test_incomplete_rollback_continues_with_first_reason(migration: Migration, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = Path(migration.source_paths.dir, "migration_lock.json")
    before = lock.read_text()
    lock.write_text("{partial")
    assert (
        carry_out(migration, monkeypatch, Step(phase_names.CERTIFY, raising(NotCertifiedError("failed"))))
        == Exit.INTERRUPTED
    )
    view = migration.directory.view()
    assert view.state == migration_state.ROLLBACK_INCOMPLETE
    assert "migration_lock.json" in view.error
    assert "midstream --continue m continues the rollback" in view.error
    lock.write_text(before)
    forward = Step(phase_names.CUTOVER)
    assert carry_out(migration, monkeypatch, forward) == Exit.NOT_CERTIFIED
    assert (migration.directory.view().error, forward.runs) == ("failed", 0)


def test_rollback_ends_if_the_run_migrated_on(migration: Migration, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = migration.source_paths
    migration.source.call(ownership.acquire)(
        root=paths.root, run_id="r", migration="m", epoch=2, owner="b", seconds=60.0
    )
    records.Fence(4, "c", 9, [records.Seal(3, 9).to_json()]).write(paths.fence)
    failing = Step(phase_names.CUTOVER, raising(MidstreamError("cut")))
    assert carry_out(migration, monkeypatch, failing) == Exit.FAILED
    view = migration.directory.view()
    assert (view.state, view.open) == (migration_state.MOVED_ON, False)
    assert "owner c" in view.error
    assert executor.execute(migration) == Exit.FAILED, "it has ended"
    with pytest.raises(UsageError, match="a later migration has the run"):
        migration_process.rollback("m")


def test_migration_ends_if_another_took_the_run_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No command to start the run on its former source is shown: it runs elsewhere."""
    migration = unsealed(tmp_path)
    run = RunDirectory(tmp_path / "other", "r")
    run.paths = migration.source_paths
    run.status(1, records.STOPPED, 9, records.ProcessIdentity("another boot", 1, 1))
    Path(run.paths.config).write_text("trainer: {id: r}\n")
    records.Fence(2, "c", 9, [records.Seal(1, 9).to_json()]).write(run.paths.fence)
    refused = Step(phase_names.CUTOVER, raising(MidstreamError("a: run r has migrated to c (ownership 2)")))
    assert carry_out(migration, monkeypatch, refused) == Exit.FAILED
    view = migration.directory.view()
    assert (view.state, view.open) == (migration_state.MOVED_ON, False)
    assert "another migration has taken r from a to c (ownership 2)" in view.error
    assert "--launch" not in view.error


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(b"")], ids=["deleted", "empty"])
def test_unreadable_certificate_is_issued_again(
    damage: Callable[[Path], None], migration: Migration, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = Certificate("m", "r", "a", "b", 7, "step-7-a001", "d", 2, (), 0.0).to_json()
    issue = Step(phase_names.CERTIFY, lambda: records.write_json(str(migration.directory.certificate_file), proof))
    interrupted = Step(phase_names.FINISH, raising(MidstreamError("the operator was killed")))
    assert carry_out(migration, monkeypatch, issue, interrupted) == Exit.INTERRUPTED
    damage(migration.directory.certificate_file)
    assert carry_out(migration, monkeypatch, issue, interrupted) == Exit.DONE
    assert issue.runs == 2
    assert migration.directory.certificate() is not None


def test_full_disk_for_the_journal_is_not_rolled_back(migration: Migration, monkeypatch: pytest.MonkeyPatch) -> None:
    """An action that cannot be recorded is not done, and the migration can be continued."""
    full = JournalError(migration.journal.path, OSError(errno.ENOSPC, "No space left on device"))
    cutover = Step(phase_names.CUTOVER, raising(full))
    with pytest.raises(JournalError, match=r"No space left .*make room there, then: midstream --continue m"):
        carry_out(migration, monkeypatch, cutover)
    assert migration.directory.view().state == migration_state.INTERRUPTED
    assert carry_out(migration, monkeypatch, cutover) == Exit.DONE
    assert not any(event.phase == phase_names.ROLLBACK for event in migration.directory.view().events)


@pytest.mark.parametrize("wrapped", [False, True], ids=["downtime report", "remembered owner"])
@pytest.mark.parametrize("started", [True, False], ids=["target may train", "target not started"])
def test_full_disk_here_discards_no_step_of_the_target(
    migration: Migration, monkeypatch: pytest.MonkeyPatch, started: bool, wrapped: bool
) -> None:
    """On the old code a report that could not be written here rolled back a target that trained."""

    def fill() -> None:
        try:
            raise OSError(errno.ENOSPC, "No space left on device", "x.json")
        except OSError as error:
            if not wrapped:
                raise
            raise MidstreamError(f"x.json cannot be written: {error}") from error

    if started:
        migration.journal.record(Facts(relaunching=True))
    failing = Step(phase_names.CERTIFY, fill)
    code = carry_out(migration, monkeypatch, failing)
    view = migration.directory.view()
    assert "No space left on device" in view.error
    if started:
        assert (code, view.state) == (Exit.INTERRUPTED, migration_state.INTERRUPTED)
        assert "midstream --continue m" in view.error
    else:
        assert (code, view.state) == (Exit.FAILED, migration_state.ROLLED_BACK)


def test_failure_after_damaged_journal_is_not_rolled_back(
    migration: Migration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lost lines may include the certificate."""
    migration.journal.record(Facts(reestablished_at=1.0))
    failing = Step(phase_names.RELAUNCH, raising(MidstreamError("the target ended")))
    assert carry_out(migration, monkeypatch, failing) == Exit.INTERRUPTED
    assert "midstream --rollback m --yes goes back to step 7 on a" in migration.directory.view().error


def test_restored_source_starts_beside_no_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its disk was put back, from before the seal. On the old code it was started while the target trained."""
    migration = unsealed(tmp_path)
    migration.journal.record(Facts(sealed=SEALED))
    run = RunDirectory(tmp_path / "other", "r")
    run.paths = migration.source_paths
    run.checkpoint(5)
    ownership.acquire(root=run.paths.root, run_id="r", migration="m", epoch=2, owner="b", seconds=60.0)
    RunDirectory(tmp_path / "b", "r").fence(2, "b", 7, [records.Seal(1, 7).to_json()])
    assert carry_out(migration, monkeypatch, Relaunch(), Cutover(), rollback=True) == Exit.INTERRUPTED
    assert "a shows step 5 of r, and was sealed at step 7" in migration.directory.view().error
    migration.directory.request_rollback(agreed=True)
    assert executor.execute(migration) == Exit.DONE
    fences = [records.Fence.read(records.RunPaths(str(tmp_path / name), "r").fence) for name in ("a", "b")]
    assert [(fence.epoch, fence.owner, fence.sealed_step) for fence in fences] == [(3, "a", 5)] * 2


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b"roll"], ids=["empty", "list", "garbage", "partial"])
def test_malformed_request_is_not_a_rollback(
    content: bytes, migration: Migration, monkeypatch: pytest.MonkeyPatch
) -> None:
    migration.directory.request_file.write_bytes(content)
    forward = Step(phase_names.CUTOVER)
    assert carry_out(migration, monkeypatch, forward) == Exit.DONE
    assert (migration.directory.view().state, forward.runs) == (migration_state.COMPLETED, 1)


def test_pending_rollback_request_is_executed_on_continue(
    migration: Migration, monkeypatch: pytest.MonkeyPatch
) -> None:
    migration.directory.request_file.write_text("rollback\n")
    forward = Step(phase_names.CUTOVER)
    assert carry_out(migration, monkeypatch, forward) == Exit.DONE
    assert (migration.directory.view().state, forward.runs) == (migration_state.ROLLED_BACK, 0)
    assert not migration.directory.request_file.exists()


def test_partial_certificate_page_prevents_no_rollback(migration: Migration) -> None:
    page = migration.directory.page_file
    page.write_bytes("# Certificate\nthe loss is …".encode()[:-1])  # cut within a character, as by a kill
    Certify().undo(migration)
    Certify().undo(migration)
    lines = page.read_text().splitlines()
    assert [lines[0], *lines[2:]] == ["# Certificate", certificate_page.VOID, "the loss is \N{REPLACEMENT CHARACTER}"]
