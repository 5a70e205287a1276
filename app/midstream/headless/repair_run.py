"""Show which records of a run are damaged and what would be written in their place; write it where that is agreed."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from midstream.errors import DamagedError, Exit, RemoteError, UsageError
from midstream.headless.status import plain
from midstream.output import Output

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.migrate.repair import Proposal, Seen


def repair(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """`--repair RUN [--on HOST] [--yes]`. Without ``--yes`` nothing is written."""
    from midstream.hosts.host_pool import Hosts
    from midstream.migrate.repair import apply, gather, propose

    if options.on and options.on not in fleet.hosts:
        raise UsageError(f"no host {options.on!r} in the fleet file", f"hosts: {', '.join(fleet.hosts)}")
    hosts = Hosts(fleet)
    try:
        seen = gather(fleet, hosts, options.repair)
        _check_known(seen, options)
        proposals = propose(seen, options.on or "")
        written = 0
        for proposal in proposals:
            kept = None
            if options.yes and proposal.determined:
                try:
                    kept = apply(hosts, proposal)
                except RemoteError as error:
                    if error.kind != "Refused":
                        raise
                    output.talk(f"midstream: {error.message}")
            written += kept is not None
            _show(proposal, kept, output)
    finally:
        hosts.close()
    for line in _checkpoints(seen):
        output.talk(f"midstream: {line}")
    return _end(options, proposals, written, output)


def _check_known(seen: Seen, options: argparse.Namespace) -> None:
    where = f" on {options.on}" if options.on else ""
    if options.on and options.on in seen.silent:
        raise UsageError(f"{options.on} does not answer: {seen.silent[options.on]}", "midstream --status shows it")
    if not seen.hosts or (options.on and options.on not in seen.hosts):
        silent = f"not answering: {', '.join(seen.silent)}" if seen.silent else "midstream --status lists them"
        raise UsageError(f"no run {options.repair!r}{where}", silent)


def _show(proposal: Proposal, kept: str | None, output: Output) -> None:
    value = {"event": "repair", **plain(proposal), "written": kept is not None, "kept": kept or ""}
    lines = [f"{proposal.host}: {proposal.run_id}/{proposal.file}: {proposal.wrong}"]
    lines += [f"    evidence: {line}" for line in proposal.evidence]
    if proposal.missing:
        lines.append(f"    not determined: {proposal.missing}")
    else:
        verb = "wrote" if kept is not None else "would write"
        what = json.dumps(proposal.value) if proposal.value is not None else "nothing: the file is set aside"
        lines.append(f"    {verb}: {what}")
        if kept:
            lines.append(f"    the damaged file is kept as {kept}")
    output.value(value, lines)


def _checkpoints(seen: Seen) -> list[str]:
    """Checkpoints are not repaired; what is wrong with them is named."""
    return [
        f"{host}: checkpoint {point['name']} is damaged ({point['damaged']}): it is neither used nor deleted"
        for host, found in seen.hosts.items()
        for point in found["checkpoints"]
        if point["damaged"]
    ]


def _end(options: argparse.Namespace, proposals: list[Proposal], written: int, output: Output) -> int:
    open_ones = [proposal for proposal in proposals if not proposal.determined]
    if open_ones:
        first = open_ones[0]
        raise DamagedError(
            f"{len(open_ones)} of {len(proposals)} records are not determined by what is left; "
            f"{first.host}: {first.file}: {first.missing}",
            "Damaged",
            "nothing is guessed: once that is known, repair again",
        )
    output.value(
        {"event": "result", "ok": True, "run": options.repair, "damaged": len(proposals), "written": written},
        [] if proposals else f"no record of {options.repair} is damaged",
    )
    if proposals and not options.yes:
        on = f" --on {options.on}" if options.on else ""
        output.talk(f"midstream: nothing was written; midstream --repair {options.repair}{on} --yes writes it")
    return Exit.DONE
