"""Steps that a migration's target has done since the seal."""

from __future__ import annotations

from midstream.errors import MidstreamError
from midstream.migrate.journal.facts import StartingPoint, required
from midstream.migrate.steps.migration import Migration, ways_to_continue
from midstream_core.listed_checkpoint import newest_checkpoint


class TargetTrainsError(MidstreamError):
    """Error: a rollback would give up steps of the target that no user gives up.

    Nothing was undone: it is withdrawn.
    """


def newest_of_target(migration: Migration) -> StartingPoint | None:
    """Return the target's newest checkpoint of this epoch; None without one.

    A restart on the target must not fall back to the migrated state.
    """
    plan, described = migration.plan, migration.target_group.describe()
    own = newest_checkpoint(checkpoint for checkpoint in described.usable if checkpoint.epoch == plan.epoch)
    return StartingPoint(own.name, own.step, own.root_digest) if own is not None else None


def shown_step(migration: Migration) -> int:
    """Return the newest step that the target shows; 0 where it shows none.

    A step counts that is saved, or that a running engine has done.

    Raises:
        HostError: The target does not answer.
    """
    plan, newest = migration.plan, newest_of_target(migration)
    attempt = migration.target_group.attempt_of_migration(plan.migration)
    status = attempt.status if attempt is not None and attempt.running else None
    done = status.step if status is not None and status.epoch == plan.epoch else 0
    return max(done, newest.step if newest is not None else 0)


def keeps_steps(migration: Migration) -> bool:
    """Return whether a rollback has to leave what the target has done since the seal.

    False after a user's request, and after a certificate that says that the target's state is not the source's.
    """
    agreed = migration.gives_up or migration.directory.rollback_requested()
    return migration.journal.facts.sealed is not None and not agreed


def refuse_giving_up(migration: Migration) -> None:
    """Raise TargetTrainsError where the target shows steps past the seal.

    HostError if it does not answer.
    """
    sealed, plan = required(migration.journal.facts.sealed, "sealed"), migration.plan
    step = shown_step(migration)
    if step > sealed.step:
        raise TargetTrainsError(
            f"{plan.target} has done steps {sealed.step + 1} to {step} of {plan.run_id}, which a rollback gives up",
            ways_to_continue(migration),
        )


def refuse_lost_seal(migration: Migration) -> None:
    """Raise TargetTrainsError where the target has steps, and the source cannot go on.

    The target is closed before the source is started: without the sealed checkpoint no host could train.

    Raises HostError if one of them does not answer.
    """
    plan, facts = migration.plan, migration.journal.facts
    if facts.sealed is None or not facts.source_was_running:
        return
    step = facts.sealed.step
    if any(checkpoint.step == step for checkpoint in migration.source_group.describe().usable):
        return
    if shown := shown_step(migration):
        raise TargetTrainsError(
            f"{plan.source} has no complete checkpoint of step {step} any more, and {plan.target} has step {shown} of "
            f"{plan.run_id}, which stays there",
            f"midstream --continue {plan.migration} goes on there, then midstream --migrate {plan.run_id} "
            f"--to {plan.source} moves it back",
        )
