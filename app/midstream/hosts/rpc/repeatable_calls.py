"""Functions of `midstream.remote` that may be called again after contact was lost in the middle of a call.

It is then unknown whether the host carried the call out. A function is listed here where a second call cannot do harm:
it only reads, or it finds what the first one did and returns the same. What is not listed is called once, and whoever
called it looks at the host before going on.
"""

from __future__ import annotations

READS = (
    "machine.checks.accelerators", "machine.checks.clock", "machine.checks.facts", "machine.checks.survey",
    "runs.leftovers.leftovers", "runs.leftovers.running_writer",
    "runs.attempts.attempt", "runs.attempts.installed", "machine.environments.ask", "machine.environments.find",
    "machine.environments.ready", "gcs.client.able",
    "gcs.tree.check", "gcs.tree.describe", "gcs.tree.digests", "gcs.tree.missing", "copy.growing_checkpoint.rest",
    "runs.ownership.migration_lock",
    "copy.history.describe", "copy.history.digests", "copy.history.sizes", "machine.google_identity.own",
    "machine.network.reach", "machine.network.see_tokens",
    "runs.losses.rows", "machine.preemption_notices.read", "machine.preemption_notices.worker",
    "verify.objects.check", "verify.objects.describe", "verify.objects.digests",
    "verify.objects.missing", "copy.tls_peer.probe", "runs.run_state.attempt_of_migration", "runs.run_state.describe",
    "runs.run_state.list_runs",
    "runs.run_state.running_attempt", "runs.run_state.metrics", "runs.run_state.read_lines",
    "runs.run_state.read_text", "runs.run_state.restore_evidence",
    "runs.record_repair.evidence", "runs.run_state.status", "runs.slurm.commands", "runs.standby_state.clock",
    "runs.standby_state.parameter_drift", "runs.standby_state.heard",
    "runs.standby_state.newest_state", "runs.standby_state.command", "runs.standby_state.rows",
    "verify.tree.manifest_value", "verify.tree.store_of",
)  # fmt: skip

ACTS = (
    "runs.attempts.give_back",  # removes a directory only where it is empty
    "runs.attempts.install",  # finds the engine installed
    "runs.attempts.remove_secrets",
    "runs.attempts.start",  # finds what it started in the attempt
    "runs.attempts.submit",  # finds the attempt's job
    "copy.growing_checkpoint.commit",  # the same manifest once more
    "copy.growing_checkpoint.tidy",
    "runs.ownership.send_command",  # an order that is not answered yet keeps its serial
    "runs.ownership.release",
    "runs.ownership.put_fence",  # a fence only rises
    "runs.ownership.seal",
    "runs.ownership.acquire",
    "copy.history.merge_lineage",
    "copy.history.set_aside",
    "machine.network.put_token",
    "machine.network.take_token",
    "runs.run_state.claim_attempt",  # at worst a number that nobody uses: an attempt without a process says nothing
    "runs.run_state.pin",
    "runs.run_state.signal",  # the engine counts requests, and answers two as it answers one
    "runs.run_state.unpin",
    "runs.standby_state.keep_config",
    "runs.standby_state.pin_newest",
    "runs.standby_state.put_config",
    "runs.standby_state.renew",
    "runs.standby_state.take_over",  # reports that the order was given before
)

REPEATABLE = frozenset((*READS, *ACTS))
ONCE = frozenset(
    {
        "machine.checks.rehearse",  # runs for minutes
        "runs.leftovers.remove",  # a second call would report that nothing was removed
        "runs.record_repair.put",  # a second call is refused: the record can be read by now
    }
)
