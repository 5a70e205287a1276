"""Save and stop a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from midstream.errors import Exit, MidstreamError
from midstream_core import records

if TYPE_CHECKING:
    from midstream.hosts.host_pool import HostPool
    from midstream.launch.rank_view import RankView
    from midstream.migrate.journal.migration_view import MigrationView
    from midstream.watch.snapshot import RunView, Snapshot


@dataclass(frozen=True)
class Stopped:
    """A run that has stopped.

    Attributes:
        words: The outcome in one line.
        status: The last status of process 0; None where no engine had started, so that nothing was saved.
    """

    words: str
    status: records.Status | None = None


def warnings(migrations: Iterable[MigrationView], run: RunView) -> Iterator[str]:
    """Yield which of the migrations may start the run again."""
    from midstream.migrate.journal.migration_state import RUNNING

    for view in migrations:
        plan = view.plan
        if plan.run_id != run.run_id or not view.open:
            continue
        what = f"migration {view.migration} of {run.run_id} from {plan.source} to {plan.target} is {view.state}"
        if view.rolled_back:
            then = f"it starts {run.run_id} on {plan.source} again"
        elif run.host == plan.source:
            then = f"after this stop it starts {run.run_id} on {plan.target}"
        else:
            then = f"its source {plan.source} is not retired before {run.run_id} runs on {plan.target} again"
        if view.state != RUNNING:
            then = f"midstream --continue {view.migration} continues it: {then}"
        yield f"{what}: {then} (midstream --rollback {view.migration} ends the migration)"


def stop(hosts: HostPool, snapshot: Snapshot, run: RunView, say: Callable[[str], object]) -> Stopped:
    """Save and stop the attempt of a run that is believed; remember where it ended.

    Args:
        hosts: Connections to the fleet's hosts.
        snapshot: The fleet, as the run was shown.
        run: The run's copy that trains.
        say: Gets lines of progress. A run of another trainer may wait for its next checkpoint.

    Raises:
        MidstreamError: The run is damaged, failed, or does not end in time, or the user pressed Ctrl-C; the last two do
            not take the command back.
    """
    from midstream.install.errors import NotStartedError, NotYetError
    from midstream.launch.attempt_monitor import STOP_TIMEOUT, stop_run
    from midstream.watch.damaged_runs import refuse_damaged
    from midstream.watch.known_owners import remember_stop

    refuse_damaged(snapshot.deciding(run.run_id) or [run])
    if not run.attempt:
        raise MidstreamError(f"run {run.run_id} on {run.host} has no attempt to stop")
    say(f"stopping {run.run_id} on {', '.join(member.host for member in snapshot.members(run))}: "
        f"{run.job_remark or 'saving first'}")  # fmt: skip
    shown: list[str] = []  # what the run said; not empty once it has the command

    def observe(ranks: Sequence[RankView]) -> None:
        message = next((rank.status.message for rank in ranks if rank.status and rank.running), "")
        if message and message not in shown:
            say(f"{run.run_id}: {message}")
        shown.append(message)

    sent, hint = f"{run.run_id} has the command, and stops when it has saved", "midstream --status shows when it has"
    try:
        ended = stop_run(hosts, run.host, run.run_id, run.attempt, STOP_TIMEOUT, observe)
    except NotStartedError as error:
        return Stopped(error.message)
    except NotYetError as error:
        raise NotYetError(f"{error.message}; {sent}", hint) from error
    except KeyboardInterrupt:
        if not shown:
            raise
        raise MidstreamError(f"interrupted: {sent}", hint, Exit.INTERRUPTED) from None
    remember_stop(snapshot.judgement(run.run_id), run.host, ended)
    saved = f"checkpoint {ended.checkpoint}" if ended.checkpoint else "without a checkpoint"
    return Stopped(f"{run.run_id} {ended.state} at step {ended.step}, {saved}", ended)
