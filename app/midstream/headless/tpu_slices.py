"""Slices without a screen: found before anything else, asked for where that was agreed to, deleted, listed."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from midstream.errors import Exit, MidstreamError, UsageError
from midstream.hosts.providers import fleet_slices, interface
from midstream.output import Output, age, table
from midstream.printable import printable

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet, TpuTarget
    from midstream.hosts.providers.interface import Slice

LOOKS = ("status", "checkpoints", "clean", "diff", "verify")  # modes that let no key in anywhere


def with_slices(fleet: Fleet, options: argparse.Namespace, output: Output, engine: tuple[str, ...] = ()) -> Fleet:
    """The fleet with the workers of its slices. The one that a run is to be started on or moved to is asked for where
    it is not there and may be: its price is told first, and somebody has to agree."""
    known = fleet_slices.of(fleet)
    if not known or options.delete:
        return fleet
    looks = any(getattr(options, mode) not in (None, False) for mode in LOOKS)
    found = fleet_slices.found(fleet, output.talk, touch=not looks)
    wanted: str = (options.launch and options.on) or (options.migrate and options.to) or ""
    if wanted in found.absent and known[wanted].create:
        _check_sense(found, options, known[wanted], engine)
        return _created(found, wanted, known[wanted], options, output)
    return found


def _check_sense(fleet: Fleet, options: argparse.Namespace, target: TpuTarget, engine: tuple[str, ...]) -> None:
    """Nothing is paid for because of a misspelt name, or for a move that would be refused once it is there."""
    from pathlib import Path

    from midstream.headless.import_run import is_path
    from midstream.headless.migrate_run import request_of
    from midstream.headless.status import look
    from midstream.hosts.host_pool import Hosts
    from midstream.launch.config_file import read_config

    if options.launch:
        read_config(Path(options.launch))
        return
    if is_path(options.migrate):
        return
    from midstream.migrate.planning.plan import check_ahead

    hosts = Hosts(fleet)
    try:
        request = request_of(options, options.migrate, "", engine)
        store = fleet.store_of_target(options.to)
        check_ahead(fleet, hosts, look(fleet, hosts), request, store, fleet_slices.devices(target))
    finally:
        hosts.close()


def _created(fleet: Fleet, name: str, target: TpuTarget, options: argparse.Namespace, output: Output) -> Fleet:
    place, price = fleet_slices.place(name, target), fleet_slices.price(target)
    output.value({"event": "price", "target": name, "slice": place, "class": target.price_class, "text": price})
    output.talk(f"midstream: {name} is not there; it would be asked for as {place}: {price}")
    if options.dry_run:
        raise UsageError(
            f"{name} is not there, and what is not there cannot be planned for",
            f"without --dry-run, and with --yes, it is asked for: {price}",
            Exit.REFUSED,
        )
    if not options.yes and not _agreed(f"Have {name} made? It costs money from then on [y/N] ", output):
        raise MidstreamError(f"{name} is not there: {price}", "say --yes to have it made", Exit.REFUSED)
    fleet_slices.provider(target).create(name, target, output.talk)
    output.value({"event": "created", "target": name, "slice": place, "class": target.price_class})
    try:
        found = fleet_slices.found(fleet, output.talk, only=(name,))
        fleet_slices.wait_for_login(found, name, output.talk)
    except MidstreamError as error:
        raise MidstreamError(f"{error.message}; {place} costs money: midstream --delete {name}", error.hint) from error
    options.made = name
    return found


def made_in_vain(fleet: Fleet, options: argparse.Namespace, code: int, output: Output) -> None:
    """What was made for a command that came to nothing: given back where the command was refused, because nothing of it
    is there; else kept, because capacity is hard to get and the next try can use it. Either is told."""
    name = getattr(options, "made", "")
    if not name:
        return
    where = fleet_slices.place(name, fleet_slices.of(fleet)[name])
    if code in (Exit.REFUSED, Exit.USAGE) and not options.keep_slice:
        output.talk(f"midstream: {name} was made for this alone, which was refused (--keep-slice keeps it)")
        try:
            fleet_slices.provider(fleet_slices.of(fleet)[name]).delete(where, output.talk)
        except MidstreamError as error:
            output.talk(f"midstream: {error}")
        else:
            output.value({"event": "deleted", "target": name, "slice": where})
            output.talk(f"midstream: {where} is deleted, it costs nothing any more")
            return
    output.value({"event": "kept", "target": name, "slice": where})
    output.talk(f"midstream: {name} was made for this; it is kept, and costs money until midstream --delete {name}")


def _agreed(question: str, output: Output) -> bool:
    """A person at a terminal may say so; nobody else is asked."""
    if output.as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    sys.stderr.write(printable(question))
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def delete(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """Delete a target's slice, or one by its place; ``--yes`` agrees. Whatever ran there is not asked."""
    known = fleet_slices.of(fleet)
    name = options.delete
    if name in known:
        target = known[name]
        place, provider = fleet_slices.place(name, target), fleet_slices.provider(target)
    elif name.count("/") == 2:
        place, provider = name, fleet_slices.google()
    else:
        hint = f"PROJECT/ZONE/NAME, or one of: {', '.join(known) or 'none'}"
        raise UsageError(f"{name!r} is no target of type tpu", hint)
    if not options.yes and not _agreed(f"Delete {place} and all that lies on its disks [y/N] ", output):
        raise MidstreamError(
            f"{place} would be deleted, with all that lies on its disks", "say --yes to agree", Exit.REFUSED
        )
    provider.delete(place, output.talk)
    output.value({"event": "result", "ok": True, "deleted": place}, f"{place} is deleted, it costs nothing any more")
    return Exit.DONE


def show(fleet: Fleet, output: Output) -> None:
    """Every slice of the fleet file's projects and zones: an event each, or a table."""
    found = fleet_slices.inventory(fleet)
    names = {fleet_slices.place(name, target): name for name, target in fleet_slices.of(fleet).items()}
    if output.as_json:
        for each in found.slices:
            output.value(as_json(each, names.get(each.place)))
        for problem in found.problems:
            output.value({"event": "problem", "message": problem})
        return
    rows = [("SLICE", "TARGET", "STATE", "TYPE", "RUNTIME", "WORKERS", "PRICE CLASS", "AGE", "")]
    for each in found.slices:
        health = "" if each.health in ("", "HEALTHY") else each.health.lower().replace("_", " ")
        queued = f"queue: {each.queued}" if each.queued not in ("", "ACTIVE", each.state) else ""
        rows.append(
            (
                each.place,
                names.get(each.place, "-"),
                each.state,
                " ".join(filter(None, (each.accelerator_type, each.topology))) or "-",
                each.runtime_version or "-",
                str(len(each.workers)) if each.workers else "-",
                each.price_class,
                age(each.created),
                ", ".join(filter(None, (health, queued, each.why))),
            )
        )
    if len(rows) > 1:
        output.value({}, ["", *table(rows)])
    for problem in found.problems:
        output.talk(f"midstream: {problem}")


def as_json(each: Slice, target: str | None) -> dict[str, Any]:
    fields = {key: value for key, value in vars(each).items() if key != "metadata"}  # keys of other people stand there
    fields["workers"] = [vars(worker) for worker in each.workers]
    return {"event": "slice", "target": target, "place": each.place, **fields}


def leftovers(fleet: Fleet, agreed: bool, output: Output) -> int:
    """Name what midstream made and what nobody is paying attention to; delete what certainly runs nothing. How many
    could be deleted and were not."""
    found = fleet_slices.inventory(fleet)
    mine = {fleet_slices.place(name, target) for name, target in fleet_slices.of(fleet).items()}
    left = 0
    for each in found.slices:
        dead = each.standing in (interface.PREEMPTED, interface.FAILED)
        if not each.ours or (each.place in mine and not dead):
            continue
        removed = False
        if dead and agreed:
            fleet_slices.google().delete(each.place, output.talk)
            removed = True
        left += dead and not removed
        kept = "" if dead else f"it is {each.state}, and may be in use: midstream --delete {each.place}"
        word = "deleted" if removed else f"kept: {kept}" if kept else "costs money or quota until it is deleted"
        output.value(
            {**as_json(each, None), "event": "leftover", "kind": "slice", "kept": kept, "removed": removed},
            f"{each.place}: {each.text()}, made by {each.labels.get(interface.MAKER, 'midstream')}: {word}",
        )
    for problem in found.problems:
        output.talk(f"midstream: {problem}")
    return left
