"""Hosts, runs, migrations and others as events, and as text in JSON or YAML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from midstream.json_events.fleet_events import HostEvent, SliceEvent
from midstream.json_events.migration_events import MigrationEvent
from midstream.json_events.run_events import OwnershipEvent, RunEvent
from midstream.listing import run_facts
from midstream.migrate.journal.migration_view import CERTIFIED, MigrationView
from midstream.output import json_text
from midstream.ownership.judgement import Judgement
from midstream.providers.provider import Slice
from midstream.watch.run_failure import failure_of
from midstream.watch.snapshot import HostView, RunView

YAML, JSON = "YAML", "JSON"
FORMATS = (YAML, JSON)


def host_event(host: HostView) -> HostEvent:
    """Return a host."""
    return HostEvent(**asdict(host))


def run_event(run: RunView) -> RunEvent:
    """Return a run, without its curve and log."""
    failure = failure_of((run,))
    return RunEvent(
        run=run.run_id,
        host=run.host,
        state=run.state,
        running=run.running,
        step=run.step,
        loss=run_facts.loss(run),
        epoch=run.epoch,
        attempt=run.attempt,
        fence=run.fence.to_json() if run.fence else None,
        problem=run.problem,
        reason=failure.reason if failure else run.remark,
        exit=run.exit.to_json() if run.exit else None,
        damaged=dict(run.damaged),
        store=run.store,
        lineage=run.lineage.attempts if run.lineage else [],
        status=run.status.to_json() if run.status else None,
        checkpoints=[asdict(checkpoint) for checkpoint in run.checkpoints],
    )


def ownership_event(judgement: Judgement) -> OwnershipEvent:
    """Return the proven owner of a run, and what each copy is."""
    head = judgement.head
    return OwnershipEvent(
        run=judgement.run_id,
        owner=head.owner if head is not None else None,
        ownership=head.epoch if head is not None else None,
        step=head.step if head is not None else None,
        problem=judgement.problem,
        copies={host: asdict(standing) for host, standing in judgement.standings.items()},
    )


def migration_event(view: MigrationView) -> MigrationEvent:
    """Return a migration, without its plan and journal."""
    return MigrationEvent(
        migration=view.migration,
        run=view.plan.run_id,
        source=view.plan.source,
        target=view.plan.target,
        state=view.state,
        phase=view.phase,
        created=view.plan.identity.created,
        predicted_seconds=dict(view.predicted_seconds),
        downtime=view.downtime.total if view.downtime else None,
        certified=view.verdict == CERTIFIED if view.certificate else None,
        certificate=view.verdict or None,
        error=view.error,
        damage=list(view.damage),
    )


def slice_event(slice_: Slice, target: str = "") -> SliceEvent:
    """Return a slice and its target, without metadata (others' SSH keys)."""
    fields = {key: value for key, value in vars(slice_).items() if key != "metadata"}
    fields["workers"] = [vars(worker) for worker in slice_.workers]
    return SliceEvent(target=target or None, path=slice_.path, **fields)


def text_of(value: Mapping[str, Any], form: str) -> str:
    """Return a JSON value as indented text in one of `FORMATS`."""
    text = json_text(value, indent=2, ensure_ascii=form == JSON)
    if form == JSON:
        return text + "\n"
    import yaml  # only where it is shown

    return yaml.safe_dump(json.loads(text), sort_keys=False, allow_unicode=True, width=100_000)
