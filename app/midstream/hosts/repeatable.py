"""Functions of `midstream.remote` that may be called again after contact was lost in the middle of a call.

It is then unknown whether the host carried the call out. A function is listed here where a second call cannot do harm:
it only reads, or it finds what the first one did and returns the same. What is not listed is called once, and whoever
called it looks at the host before going on.
"""

from __future__ import annotations

READS = (
    "checks.accelerators", "checks.clock", "checks.facts", "checks.survey", "clean.leftovers", "clean.living",
    "engine.attempt", "engine.installed", "environments.ask", "environments.find", "environments.ready", "gcs.able",
    "gcs_tree.check", "gcs_tree.describe", "gcs_tree.digests", "gcs_tree.missing", "growing.rest", "hands.mover",
    "history.describe", "history.digests", "history.sizes", "identity.own", "links.reach", "links.see_tokens",
    "losses.rows", "notices.read", "notices.worker", "objects.check", "objects.describe", "objects.digests",
    "objects.missing", "peer.knock", "runs.attempt_of_migration", "runs.describe", "runs.list_runs",
    "runs.living_attempt", "runs.metrics", "runs.read_lines", "runs.read_text", "runs.restore_evidence",
    "repairs.evidence", "runs.status", "slurm.commands", "standby.clock", "standby.crossing", "standby.heard",
    "standby.newest_state", "standby.order", "standby.rows", "tree.manifest_value", "tree.store_of",
)  # fmt: skip

ACTS = (
    "engine.give_back",  # removes a directory only where it is empty
    "engine.install",  # finds the engine installed
    "engine.remove_secrets",
    "engine.start",  # finds what it started in the attempt
    "engine.submit",  # finds the attempt's job
    "growing.commit",  # the same manifest once more
    "growing.tidy",
    "hands.give_order",  # an order that is not answered yet keeps its serial
    "hands.let_go",
    "hands.put_fence",  # a fence only rises
    "hands.seal",
    "hands.take",
    "history.merge_lineage",
    "history.set_aside",
    "links.put_token",
    "links.take_token",
    "runs.claim_attempt",  # at worst a number that nobody uses: an attempt without a process says nothing
    "runs.pin",
    "runs.signal",  # the engine counts requests, and answers two as it answers one
    "runs.unpin",
    "standby.keep_config",
    "standby.pin_newest",
    "standby.put_config",
    "standby.renew",
    "standby.take_over",  # reports that the order was given before
)

REPEATABLE = frozenset((*READS, *ACTS))
ONCE = frozenset(
    {
        "checks.rehearse",  # runs for minutes
        "clean.remove",  # a second call would report that nothing was removed
        "repairs.put",  # a second call is refused: the record can be read by now
    }
)
