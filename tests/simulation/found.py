"""Schedules that broke an invariant once, as they were found. A change of the program's calls moves their faults."""

from __future__ import annotations

from simulation.schedules import Schedule
from simulation.shrink import read_faults


def _found(seed: int, scenario: str, mode: str, place: str, faults: str) -> Schedule:
    return Schedule(seed, scenario, mode, read_faults(faults), place)


FOUND = (
    # Completed, although a process of a copied state directory had rolled it back.
    _found(1000073, "copied state", "live", "disk", "133:fill source:4000"),
    # A process that had waited for an answer rolled back what another one, of a copied state directory, had certified.
    _found(34, "copied state", "live", "disk", "62:request lost,78:keep state"),
    # A migration went on that a copy of its files had rolled back before it locked the run.
    _found(3001, "copied state", "live", "disk", "97:fill target:60,102:cut source:60,127:fill source:5"),
    # A power cut damaged the target's status, and the migration waited for a week.
    _found(2000054, "and back", "cold", "disk", "13:kill after line,34:crash target:700,84:crash target:5"),
    # The target's root was restored from before the migration: no line said how to go on from the bucket.
    _found(2100045, "migrate", "cold", "bucket without conditions", "0:snapshot target:60"),
    # The source's root was restored: the repair left its fence at an earlier ownership, under which nothing can save.
    _found(2200048, "roll back", "cold", "bucket", "28:snapshot source:60,31:cut target:5,33:fill target:4000"),
    # A power cut damaged the status of a standby that was to take over: no repair determined it.
    _found(2500055, "roll back", "warm", "bucket", "68:crash target:700,72:cut bucket:4000"),
    # The source's full disk rolled back what the target had done; and the sealed checkpoint had left the bucket.
    _found(2600010, "liar", "warm", "bucket", "68:fill operator:5,72:fill source:700"),
    # A process that had been suspended ended as completed, after a copy of its files had rolled the migration back.
    _found(3000080, "copied state", "cold", "disk", "66:freeze process:5,68:freeze process:700"),
    # The target's root was restored while its healthy steps were awaited: the migration waited for a week.
    _found(3000180, "liar", "warm", "bucket", "44:snapshot target:60,54:reboot operator"),
    # A migration of a run that had failed was rolled back, and no line said how to start the run again.
    _found(0, "guard", "cold", "bucket", "29:crash source:700,44:snapshot target:60,75:crash source:4000"),
    # A power cut took the rows of a replica: what was missing was held against the target, and its steps given up.
    _found(3000076, "and back", "live", "disk", "30:request lost,127:crash target:5"),
    # A copied journal stayed open: the bucket had no sealed checkpoint any more, as the migration was completed.
    _found(2600028, "copied state", "warm", "bucket without conditions", "37:kill process,77:request lost"),
    # The sealed source was restored from before the seal: the rollback had "nothing to undo", and no one owned the run.
    _found(5000015, "roll back", "cold", "disk", "18:snapshot source:60,44:cut both:700,76:kill before line"),
    # The target lost all that it had, after the migration: it was started for ever, though the source has a state.
    _found(5300021, "patient", "cold", "disk", "45:crash source:4000,81:snapshot target:700"),
    # A start was watched whose attempt a restored disk had taken: "does not answer", and no command.
    _found(5301240, "roll back", "cold", "bucket", "5:crash source:5,29:snapshot source:5,40:crash source:5"),
    # The source was restored from before its rehearsal's checkpoint, and sealed at an earlier step.
    _found(5301178, "liar", "warm", "group", "13:snapshot source:60,52:reboot operator,114:kill process"),
    # A stop of a job that had ended had no command.
    _found(5300356, "and back", "cold", "cluster", "12:kill before line,19:snapshot target:4000,83:preempt jobs"),
    # A source restored from before the migration's lock was sealed by it, and then refused the lock: it moved on.
    _found(84, "migrate", "live", "disk", "84:snapshot source:5"),
    # A sealed source was restored, with the lock: the rollback started it while the target trained on.
    _found(5400524, "roll back", "warm", "group", "89:snapshot source:5"),
    # A rollback came before the target was seen to train: its retention had removed the sealed checkpoint by then.
    _found(5600041, "roll back", "warm", "bucket", "51:crash source:4000,77:snapshot source:700,110:snapshot target:5"),
    # The target's clock was a day ahead of the source's, by which the pin in the bucket was to expire.
    _found(5600108, "roll back late", "warm", "bucket", "59:crash target:4000"),
    # Both roots were restored after a rollback: `--restart` and `--repair` named each other for ever.
    _found(5600777, "roll back", "warm", "disk", "8:restore state,58:snapshot source:60,93:snapshot target:60"),
    # The shared root of a cluster was put back while a job trained: it committed without a fence.
    _found(0, "migrate", "warm", "cluster", "51:snapshot target:60"),
    # An automatic rollback was continued, and gave up what the target had saved in between.
    _found(0, "migrate", "warm", "cluster", "77:fill target:60"),
    # A requeued job's status was that of its superseded start: it was migrated from an earlier checkpoint.
    _found(5700109, "and back", "warm", "cluster", "61:lose nodes:5,71:busy controller:700"),
    # The same status: the job was started again beside itself.
    _found(5600678, "migrate", "cold", "cluster", "67:lose nodes:5"),
    # The owner's root was restored before a migration back: `--continue` and `--repair` named each other.
    _found(5600584, "and back", "warm", "group", "83:snapshot target:60"),
    # A replica's root was restored under it: the next standby got its number, beside a process that had not ended.
    _found(5013, "migrate", "live", "group", "0:snapshot target:60"),
    # A rollback without signed records, and its source was restored after it: no line said how to go on.
    _found(3, "roll back", "warm", "group", "75:snapshot source:60"),
    # A process that was suspended at its last call ended as completed, after a copy had rolled the migration back.
    _found(37, "copied state", "cold", "disk", "7:freeze process:5,73:freeze process:700"),
    # The owner's root was restored before its seal: the rollback started the older copy, without asking.
    _found(5720014, "and back", "live", "disk", "24:snapshot target:700,120:snapshot target:60"),
    # A replica had taken over when its job was requeued: the sealed state that it restored failed the certificate.
    _found(6056690, "migrate", "live", "cluster", "90:requeue jobs"),
    # A replica's job was requeued before it took over: it trained on from the checkpoint of its rehearsal.
    _found(6070156, "migrate", "live", "cluster", "18:kill after line,85:requeue jobs"),
    # A journal had lost where a replay began, and no command brought the migration on.
    _found(6010357, "copied state", "live", "disk", "18:kill process after,84:cut bucket:4000"),
    # A process that was suspended had rehearsed from another checkpoint than the replica that another one started.
    _found(6006479, "copied state", "live", "group", "36:freeze process:700"),
    # A rollback closed the target, and the source had lost the sealed checkpoint: no host could train.
    _found(
        6063796,
        "copied state",
        "warm",
        "bucket without conditions",
        "37:request lost,70:snapshot target:700,94:crash source:60",
    ),
    # The owner's root was restored from before its fence, which was repaired: a number of a start was given twice.
    _found(6170574, "and back", "live", "group", "11:snapshot source:60,76:snapshot target:60"),
    # A damaged status of an earlier attempt had been copied to the target: no repair determined it there.
    _found(6105366, "liar", "warm", "disk", "32:kill engine,80:crash source:4000"),
    _found(6182210, "migrate", "warm", "bucket", "19:kill engine,46:crash source:700,57:kill before line"),
    # The owner's root was restored with its records: the repair that was named did not look at its own host.
    _found(
        6195215,
        "migrate",
        "cold",
        "cluster",
        "35:snapshot target:5,38:snapshot source:700,81:isolate nodes later",
    ),
    # Of earlier days.
    Schedule(65517078),
    Schedule(662596669),
    Schedule(2000138),
    Schedule(3000020),
)
