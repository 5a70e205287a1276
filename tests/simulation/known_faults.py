"""Faults of the project's history, put back one at a time: the simulation has to find each.

Each is a function that changes the program in this process. Its docstring says what the fault was.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from midstream.errors import MidstreamError
from midstream.migrate import executor, journal_recovery, migration_process
from midstream.migrate.journal import phase_names
from midstream.migrate.journal.migration_directory import MigrationDirectory
from midstream.migrate.phases import cutover, relaunch
from midstream.migrate.steps import ownership_records, source_return, target_close, target_progress
from midstream.ownership.judgement import UNSIGNED, Judgement, Standing
from midstream.ownership.owner_judge import OwnerJudge
from midstream_core import records
from midstream_core.attempt import save_fence, start_number
from midstream_engine.checkpoint.saving import retention
from midstream_engine.loop.fence_reader import FenceReader
from midstream_host.runs import attempts, ownership, run_state, slurm, slurm_commands
from simulation import copies
from simulation.engine_process import EngineProcess
from simulation.operating_system import replace_everywhere

KNOWN: dict[str, Callable[[], None]] = {}


def known(put_back: Callable[[], None]) -> Callable[[], None]:
    KNOWN[put_back.__name__] = put_back
    return put_back


@known
def any_fence_accepts() -> None:
    """A commit did not look at the fence, and no engine looked at it between two updates."""
    replace_everywhere(save_fence.check, lambda *_: None)
    save_fence.check = lambda *_, **__: None  # type: ignore[assignment]
    FenceReader.epoch = lambda self: 0  # type: ignore[method-assign]


@known
def start_is_repeated() -> None:
    """The answer to a start was lost; the second call started a second process."""
    real = attempts.start

    def start(root: str, run_id: str, number: int, **named: Any) -> Any:

        launched = records.RunPaths(root, run_id).attempt(number).launched(0)
        if os.path.exists(launched):
            os.unlink(launched)
        return real(root, run_id, number, **named)

    _replace_declared(real, start)
    replace_everywhere(run_state.running_attempt, _declared_like(run_state.running_attempt, lambda *_, **__: 0))


@known
def present_attempt_is_not_adopted() -> None:
    """A continued migration started another attempt beside the one that it had started."""
    replace_everywhere(relaunch._present_attempt, lambda migration: None)
    _replace_declared(attempts._refuse_running, lambda *_, **__: None, declared=False)


@known
def suspended_process_starts_the_target() -> None:
    """A migration process that slept started the target after another one had rolled the migration back."""
    replace_everywhere(ownership_records._is_fresh, lambda allowed_at: True)


@known
def source_permits_any_process() -> None:
    """The source permitted a start without a look at its fence and migration lock."""
    _replace_declared(ownership.allow_start, lambda **_: None)
    replace_everywhere(ownership_records.refuse_later_owner, lambda *_, **__: None)


@known
def silence_of_the_journal() -> None:
    """A restored journal that has no start of the target counted as proof that there was none."""
    replace_everywhere(ownership_records.may_have_started, lambda migration: False)
    replace_everywhere(journal_recovery.is_behind, lambda migration: False)


@known
def restored_journal_is_believed() -> None:
    """A copy of the state directory from before the relaunch rolled a completed migration back."""
    replace_everywhere(journal_recovery.is_behind, lambda migration: False)


@known
def rollback_leaves_target() -> None:
    """A rollback started the source while the target trained."""
    replace_everywhere(target_close.close_target, lambda migration, back: None)


@known
def rollback_leaves_nothing_running() -> None:
    """A rollback did not start the source that it had stopped."""
    replace_everywhere(source_return.resume_unsealed, lambda migration, fence: None)
    replace_everywhere(source_return.reopen_source, lambda migration, back: None)


def _give_up_steps() -> None:
    """Have a failure give up what the target has done."""
    replace_everywhere(executor._may_go_on, lambda migration: False)
    replace_everywhere(target_progress.keeps_steps, lambda migration: False)


@known
def lost_contact_rolls_back() -> None:
    """A target that did not answer counted as one that does not train: the migration was rolled back."""
    replace_everywhere(executor._contact_lost, lambda migration, phase, error: error)
    _give_up_steps()
    replace_everywhere(target_close.close_target, _close_if_it_answers)


def _close_if_it_answers(migration: Any, back: Any) -> None:
    from midstream.errors import HostError

    try:
        target_close._stop_target(migration, back, started=True)
    except HostError as error:
        migration.note(f"{error}; it does not answer")


@known
def start_numbers_do_not_rise() -> None:
    """Two starts of one ownership had one number."""
    real = start_number._next

    def next_fence(paths: Any, epoch: int, fence: Any, newest: Any) -> Any:
        taken, name = real(paths, epoch, fence, newest)
        return (replace(taken, start=max(1, fence.start), ended=fence.ended) if taken and fence.start else taken), name

    replace_everywhere(real, next_fence)


@known
def superseded_start_goes_on() -> None:
    """A start that a newer one had replaced did not notice."""
    FenceReader.superseded = lambda self, epoch, start: False  # type: ignore[method-assign]
    replace_everywhere(save_fence.is_superseded, lambda fence, epoch, start: False)


@known
def engine_ignores_command_to_restore() -> None:
    """The target's engine began from the beginning; the certificate was valid."""
    EngineProcess._origin = lambda self, command: ""  # type: ignore[method-assign]


@known
def older_checkpoint_is_restored() -> None:
    """A requeued attempt restored the checkpoint of its first command, and gave up what it had saved since.

    Of a run that keeps its checkpoints: else retention has removed that one.
    """
    replace_everywhere(retention.to_delete, lambda *_, **__: [])
    EngineProcess._origin = lambda self, command: (  # type: ignore[method-assign]
        command.checkpoint if command and command.checkpoint else _first_checkpoint(self)
    )


def _first_checkpoint(one: EngineProcess) -> str:

    names = [name for name in os.listdir(one.paths.checkpoints) if records.parse_checkpoint_name(name)]
    return min(names, key=lambda name: records.parse_checkpoint_name(name) or (0, 0), default="")


@known
def copy_is_not_verified() -> None:
    """A byte changed on its way, and no check saw it."""
    real = copies._write

    def write(directory: str, path: str, data: bytes) -> None:
        real(directory, path, data[:-1] + bytes([data[-1] ^ 1]) if path.endswith("/0") else data)

    copies._write = write
    cutover.Cutover._verify = lambda self, *_: None  # type: ignore[method-assign]


@known
def seal_beside_a_running_engine() -> None:
    """A source was sealed at an old checkpoint while its engine trained."""
    replace_everywhere(run_state.running_attempt, _declared_like(run_state.running_attempt, lambda *_, **__: 0))
    real = run_state.describe

    def describe(root: str, run_id: str) -> Any:
        return replace(real(root, run_id), running=False)

    _replace_declared(real, describe)


@known
def fence_goes_back() -> None:
    """A fence was replaced by an older one."""

    def put_fence(root: str, run_id: str, fence: Any, migration: str = "", chain: Any = None) -> Any:
        del migration, chain

        paths = records.RunPaths(root, run_id)
        os.makedirs(paths.dir, exist_ok=True)
        new = records.Fence.from_json(dict(fence), "fence")
        new.write(paths.fence)
        return new

    _replace_declared(ownership.put_fence, put_fence)


@known
def migration_lock_is_shared() -> None:
    """Two migrations of one run acquired the lock."""
    replace_everywhere(ownership._refuse_others, lambda *_: None)
    replace_everywhere(migration_process.refuse_later_owner, lambda *_, **__: None)


@known
def largest_epoch_is_believed() -> None:
    """The largest ownership number that any host showed was the run's: a liar stopped the honest run's migration."""
    OwnerJudge.judge = lambda self, run_id, copies: Judgement(  # type: ignore[method-assign]
        run_id, None, {copy.host: Standing(UNSIGNED) for copy in copies}
    )


@known
def relaunch_runs_once() -> None:
    """A target that had failed before the certificate was not started again."""
    replace_everywhere(executor._needs_rerun, lambda migration, phase: False)


@known
def pins_are_ignored() -> None:
    """Retention deleted the checkpoint that a migration was copying."""
    replace_everywhere(retention.read_pins, lambda paths, now: set())


@known
def run_passes_on_unnoticed() -> None:
    """A start did not look whether the run had passed to a later owner."""
    replace_everywhere(attempts._refuse_passed_on, lambda *_: None)
    replace_everywhere(start_number._next, _next_of_any_epoch)


def _next_of_any_epoch(paths: Any, epoch: int, fence: Any, newest: Any) -> Any:
    del paths, newest
    return (replace(fence, epoch=max(epoch, fence.epoch)) if fence else None), ""


@known
def standby_is_taken_for_the_run() -> None:
    """A standby whose start was not recorded counted as a started attempt: no command was sent to it."""
    from midstream.migrate.steps import prepare_standby

    replace_everywhere(prepare_standby.adopt_standby, lambda migration: None)


@known
def fence_is_not_durable() -> None:
    """A fence was not synchronized with the disk: a power cut left a partial or an older one."""
    real = records.Fence.write
    records.Fence.write = lambda self, path, *, durable=True: real(self, path, durable=False)  # type: ignore[method-assign]


@known
def own_full_disk_rolls_back() -> None:
    """A report that could not be written on the operator's full disk rolled back a target that trained."""
    replace_everywhere(executor._is_of_this_machine, lambda error: False)
    _give_up_steps()


@known
def failure_gives_up_steps() -> None:
    """A source that was away for five seconds after the target had started gave up the target's steps."""
    _give_up_steps()
    executor.HostError = MidstreamError  # type: ignore[misc, assignment]  lost connections are like other errors


@known
def late_command_seals() -> None:
    """A command to seal came after another process had rolled the migration back: the run had no owner."""

    def send_command(root: str, run_id: str, attempt: int, command: Any) -> int:
        files = records.RunPaths(root, run_id).attempt(attempt)
        before = records.Command.read_or_none(files.command_file)
        sequence = before.sequence + 1 if before else 1
        records.Command.from_json({**command, "sequence": sequence}, "command").write(files.command_file)
        return sequence

    _replace_declared(ownership.send_command, send_command)
    replace_everywhere(ownership_records.refuse_later_owner, lambda *_, **__: None)


@known
def released_lock_is_acquired() -> None:
    """A migration went on that a copy of its files had rolled back before it locked the run."""
    real = ownership.acquire

    def acquire(root: str, run_id: str, *given: Any, **named: Any) -> Any:
        path = records.RunPaths(root, run_id).migration_lock
        lock = records.MigrationLock.read_or_none(path)
        if lock is not None and lock.released:
            os.unlink(path)
        return real(root, run_id, *given, **named)

    _replace_declared(real, acquire)


@known
def sealed_checkpoint_is_pruned() -> None:
    """The target's retention removed the sealed checkpoint from a bucket: no rollback was possible."""
    relaunch.pin = lambda *_: None  # type: ignore[assignment]


@known
def earlier_fence_is_left() -> None:
    """The repair of a restored owner left its earlier fence, under which engines start and save nothing."""
    Judgement.has_earlier_fence = lambda self, host, fence: False  # type: ignore[method-assign]


@known
def accounting_comes_first() -> None:
    """The accounting, which is late and has each earlier run of a requeued job, decided on a job's state."""
    real = slurm_commands.run

    def run(argv: Any, *given: Any, **named: Any) -> str:
        if argv[0] == "squeue" and "--jobs" in argv:
            raise slurm_commands.MissingError("squeue: unreachable")
        return real(argv, *given, **named)

    replace_everywhere(real, run)


@known
def requeued_job_has_ended() -> None:
    """A job that had ended with its engine's last status counted as ended while it waited to start again."""
    real = slurm.is_running

    def is_running(path: Any, status: Any) -> bool:
        return real(path, status) and not (status is not None and status.state in records.ENDED)

    replace_everywhere(real, is_running)


@known
def restart_falls_back() -> None:
    """A target that was started again began from the migrated state, and gave up what it had saved since.

    Of a run that keeps its checkpoints.
    """
    older_checkpoint_is_restored()
    replace_everywhere(relaunch.newest_of_target, lambda migration: None)


@known
def certified_run_is_rolled_back() -> None:
    """A failure after the certificate rolled the migration back, and gave up the target's steps."""
    executor.phase_names = SimpleNamespace(**{**vars(phase_names), "CERTIFY": "none"})  # type: ignore[assignment]
    _give_up_steps()


@known
def two_processes_of_a_migration() -> None:
    """A migration was continued while another process executed it."""
    MigrationDirectory.locked = lambda self, *_, **__: contextlib.nullcontext()  # type: ignore[method-assign]


@known
def failed_node_ends_its_engine() -> None:
    """A job whose node SLURM had lost counted as ended while its engine trained on: it was started again."""
    replace_everywhere(slurm.may_live, lambda status: False)


def _declared_like(real: Callable[..., Any], new: Callable[..., Any]) -> Callable[..., Any]:
    import functools

    return functools.wraps(real)(new)


def _replace_declared(real: Callable[..., Any], new: Callable[..., Any], declared: bool = True) -> None:
    replace_everywhere(real, _declared_like(real, new) if declared else new)
