"""What becomes of a migration when a phase fails, by what failed and when. Only the phases are stood in for."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from midstream.errors import Exit, HostError, LostContact, MidstreamError, UsageError
from midstream.fleet.fleet_file import load_fleet
from midstream.hosts.host_pool import Hosts
from midstream.migrate import model
from midstream.migrate.execution import executor, migration_directory, migration_process
from midstream.migrate.execution.journal import Journal, JournalError
from midstream.migrate.execution.migration import Migration
from midstream.migrate.phases.certify import NotCertified
from midstream.watch.watcher import Watch
from midstream_engine import records
from support.run_directory import RunDirectory
from unit.sample_plan import PLAN


class Step:
    """A phase that does what it is told."""

    def __init__(self, name: str, act: Callable[[], None] = lambda: None):
        self.name, self.act = name, act
        self.runs = 0

    def run(self, move: Migration) -> None:
        self.runs += 1
        self.act()


def raising(*errors: Exception) -> Callable[[], None]:
    """Raises them one after the other, then no more."""
    left = list(errors)

    def act() -> None:
        if left:
            raise left.pop(0)

    return act


@pytest.fixture
def move(tmp_path: Path) -> Migration:
    """Sealed at step 7."""
    made = unsealed(tmp_path)
    made.journal.fact(sealed={"step": 7})
    return made


def unsealed(tmp_path: Path) -> Migration:
    file = tmp_path / "fleet.yaml"
    file.write_text("".join(["hosts:\n", *(f'  {n}: {{type: local, root: "{tmp_path}/{n}"}}\n' for n in ("a", "b"))]))
    fleet = load_fleet(file)
    RunDirectory(tmp_path / "a", "r").fence(1, "a")
    place = migration_directory.create(replace(PLAN, migration="m"), fleet.text)
    journal = Journal(place.journal_file)
    hosts = Hosts(fleet)
    return Migration(PLAN, place, journal, fleet, hosts, Watch(fleet, hosts))


def carry_out(move: Migration, monkeypatch: pytest.MonkeyPatch, *steps: Step, rollback: bool = False) -> Exit:
    monkeypatch.setattr(executor, "phases", lambda: steps)
    return executor.execute(move, rollback=rollback)


def test_a_phase_that_fails_before_the_certificate_is_rolled_back(move: Migration, monkeypatch: pytest.MonkeyPatch):
    failing = Step(model.CUTOVER, raising(MidstreamError("the disk is full", "make room")))
    assert carry_out(move, monkeypatch, failing) == Exit.FAILED
    view = move.directory.view()
    assert (view.state, view.error) == (model.ROLLED_BACK, "the disk is full (make room)")


def test_what_fails_after_the_certificate_gives_up_nothing(move: Migration, monkeypatch: pytest.MonkeyPatch):
    proof = model.Certificate("m", "r", "a", "b", 7, "step-7-a001", "d", 2, (), 0.0).to_json()
    issue = Step(model.CERTIFY, lambda: records.write_json(str(move.directory.certificate_file), proof))
    steps = (issue, Step(model.FINISH, raising(MidstreamError("no word from the target"))))
    assert carry_out(move, monkeypatch, *steps) == Exit.INTERRUPTED
    view = move.directory.view()
    assert view.state == model.INTERRUPTED
    assert "midstream --continue m" in view.error
    assert "midstream --rollback m --yes goes back to step 7 on a" in view.error
    assert not any(event.phase == model.ROLLBACK for event in view.events)
    assert carry_out(move, monkeypatch, *steps) == Exit.DONE
    assert (steps[0].runs, steps[1].runs) == (1, 2)


def test_a_refuted_certificate_and_a_surprise_have_their_exit_codes(move: Migration, monkeypatch: pytest.MonkeyPatch):
    assert carry_out(move, monkeypatch, Step(model.CERTIFY, raising(NotCertified("no")))) == Exit.NOT_CERTIFIED
    assert executor.execute(move) == Exit.NOT_CERTIFIED, "it has ended; who comes later is told how"
    assert executor.execute(move, rollback=True) == Exit.NOT_CERTIFIED


def test_an_error_that_nobody_foresaw_is_one_line_and_rolled_back(move: Migration, monkeypatch: pytest.MonkeyPatch):
    assert carry_out(move, monkeypatch, Step(model.RELAUNCH, raising(KeyError("surprise")))) == Exit.FAILED
    events = move.directory.view().events
    assert [event.message for event in events if event.state == model.FAILED] == ["KeyError: 'surprise'"]
    assert any(event.event == "trace" and "Traceback" in event.message for event in events)


def test_a_cut_link_repeats_the_phase_until_it_is_cut_too_often(move: Migration, monkeypatch: pytest.MonkeyPatch):
    cut = [LostContact(f"cut {number}") for number in range(executor.CUTS + 1)]
    step = Step(model.CUTOVER, raising(*cut[:-1]))
    assert carry_out(move, monkeypatch, step) == Exit.DONE
    assert step.runs == executor.CUTS + 1


def test_a_link_that_is_cut_again_and_again_is_a_failure(move: Migration, monkeypatch: pytest.MonkeyPatch):
    cut = [LostContact(f"cut {number}") for number in range(executor.CUTS + 1)]
    assert carry_out(move, monkeypatch, Step(model.CUTOVER, raising(*cut))) == Exit.FAILED


def silent() -> Step:
    """A cutover whose host is never heard."""
    return Step(model.CUTOVER, raising(*(LostContact("a: lost contact") for _ in range(executor.CUTS + 1))))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, "r was not ordered to stop, and stays on a"),
        ({"ordered": 1.0}, "a was ordered to stop, and whether it has stopped is not known"),
        ({"sealed": {"step": 7}, "relaunching": True}, "r is sealed at step 7, and b may be training it"),
    ],
)
def test_silence_interrupts_the_move_and_rolls_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: dict[str, object], words: str
):
    move = unsealed(tmp_path)
    if facts:
        move.journal.fact(**facts)
    assert carry_out(move, monkeypatch, silent()) == Exit.INTERRUPTED
    view = move.directory.view()
    assert view.state == model.INTERRUPTED
    assert words in view.error
    assert "midstream --continue m goes on when the host answers" in view.error
    assert not any(event.phase == model.ROLLBACK for event in view.events)
    assert carry_out(move, monkeypatch, Step(model.CUTOVER)) == Exit.DONE, "the line that was printed works"


def test_a_host_that_cannot_be_reached_for_long_interrupts_the_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    move = unsealed(tmp_path)
    reached: list[bool] = []
    monkeypatch.setattr(executor, "RECONNECT", 0.0)
    monkeypatch.setattr(executor, "PAUSE", 0.0)
    monkeypatch.setattr(executor, "_connected", lambda move: bool(reached))
    step = Step(model.CUTOVER, raising(HostError("a: cannot be reached", "is the machine up?")))
    assert carry_out(move, monkeypatch, step) == Exit.INTERRUPTED
    assert "a: cannot be reached; r was not ordered to stop" in move.directory.view().error


def test_a_rollback_that_leaves_nothing_running_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The source's host was rebooted before its first checkpoint."""
    move = unsealed(tmp_path)
    run = RunDirectory(tmp_path / "other", "r")  # for its helpers: the one on `a` exists
    run.paths = records.RunPaths(str(tmp_path / "a"), "r")
    run.status(1, records.TRAINING, 9, records.ProcessIdentity("another boot", 1, 1))
    Path(run.paths.config).write_text("trainer: {id: r}\n")
    assert carry_out(move, monkeypatch, Step(model.CUTOVER, raising(MidstreamError("no checkpoint")))) == (
        Exit.NOT_RUNNING
    )
    view = move.directory.view()
    assert view.state == model.ROLLED_BACK
    config = move.directory.path / "run.yaml"
    assert view.error.startswith("no checkpoint; r does not run on a: its process is gone (last seen: training at step")
    assert f"midstream --launch {config} --on a --run-id r starts it there at step 0" in view.error
    assert config.read_text() == "trainer: {id: r}\n"
    assert executor.execute(move) == Exit.NOT_RUNNING, "it has ended; who comes later is told how"


def test_a_rollback_that_cannot_be_completed_ends_later_with_its_own_reason(
    move: Migration, monkeypatch: pytest.MonkeyPatch
):
    fence = Path(move.source_paths.dir, "migration_lock.json")
    fence.write_text("{torn")
    assert carry_out(move, monkeypatch, Step(model.CERTIFY, raising(NotCertified("failed")))) == Exit.INTERRUPTED
    view = move.directory.view()
    assert view.state == model.ROLLBACK_INCOMPLETE
    assert "migration_lock.json" in view.error
    assert "midstream --continue m goes on with the rollback" in view.error
    fence.unlink()
    forward = Step(model.CUTOVER)
    assert carry_out(move, monkeypatch, forward) == Exit.NOT_CERTIFIED
    assert (move.directory.view().error, forward.runs) == ("failed", 0)


def test_a_rollback_ends_where_the_run_was_moved_on_meanwhile(move: Migration, monkeypatch: pytest.MonkeyPatch):
    paths = move.source_paths
    move.source.call(
        "runs.ownership.acquire", root=paths.root, run_id="r", migration="m", epoch=2, holder="b", seconds=60.0
    )
    records.Fence(4, "c", 9, [records.Seal(3, 9).to_json()]).write(paths.fence)
    failing = Step(model.CUTOVER, raising(MidstreamError("cut")))
    assert carry_out(move, monkeypatch, failing) == Exit.FAILED
    view = move.directory.view()
    assert (view.state, view.open) == (model.MOVED_ON, False)
    assert "holder c" in view.error
    assert executor.execute(move) == Exit.FAILED, "it has ended"
    with pytest.raises(UsageError, match="moved on"):
        migration_process.rollback("m")


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(b"")], ids=["deleted", "empty"])
def test_a_certificate_that_cannot_be_read_any_more_is_made_again(
    damage: Callable[[Path], None], move: Migration, monkeypatch: pytest.MonkeyPatch
):
    proof = model.Certificate("m", "r", "a", "b", 7, "step-7-a001", "d", 2, (), 0.0).to_json()
    issue = Step(model.CERTIFY, lambda: records.write_json(str(move.directory.certificate_file), proof))
    interrupted = Step(model.FINISH, raising(MidstreamError("the operator was killed")))
    assert carry_out(move, monkeypatch, issue, interrupted) == Exit.INTERRUPTED
    damage(move.directory.certificate_file)
    assert carry_out(move, monkeypatch, issue, interrupted) == Exit.DONE
    assert issue.runs == 2
    assert move.directory.certificate() is not None


def test_a_phase_without_room_for_its_journal_is_not_rolled_back(move: Migration, monkeypatch: pytest.MonkeyPatch):
    """What cannot be written down is not done, and the migration can be continued."""
    full = JournalError(move.journal.path, OSError(errno.ENOSPC, "No space left on device"))
    cutover = Step(model.CUTOVER, raising(full))
    with pytest.raises(JournalError, match=r"No space left .*make room there, then: midstream --continue m"):
        carry_out(move, monkeypatch, cutover)
    assert move.directory.view().state == model.INTERRUPTED
    assert carry_out(move, monkeypatch, cutover) == Exit.DONE
    assert not any(event.phase == model.ROLLBACK for event in move.directory.view().events)


def test_a_failure_after_a_damaged_journal_gives_up_nothing_by_itself(move: Migration, monkeypatch: pytest.MonkeyPatch):
    """The lost lines may be those of the certificate."""
    move.journal.fact(reestablished=1.0)
    failing = Step(model.RELAUNCH, raising(MidstreamError("the target ended")))
    assert carry_out(move, monkeypatch, failing) == Exit.INTERRUPTED
    assert "midstream --rollback m --yes goes back to step 7 on a" in move.directory.view().error


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b"roll"], ids=["empty", "list", "garbage", "torn"])
def test_an_odd_request_is_not_taken_for_a_rollback(content: bytes, move: Migration, monkeypatch: pytest.MonkeyPatch):
    move.directory.request_file.write_bytes(content)
    forward = Step(model.CUTOVER)
    assert carry_out(move, monkeypatch, forward) == Exit.DONE
    assert (move.directory.view().state, forward.runs) == (model.COMPLETED, 1)


def test_a_request_that_nobody_had_heard_is_carried_out_by_who_continues(
    move: Migration, monkeypatch: pytest.MonkeyPatch
):
    move.directory.request_file.write_text("rollback\n")
    forward = Step(model.CUTOVER)
    assert carry_out(move, monkeypatch, forward) == Exit.DONE
    assert (move.directory.view().state, forward.runs) == (model.ROLLED_BACK, 0)
    assert not move.directory.request_file.exists()
