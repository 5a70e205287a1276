"""Creation of slices by headless modes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from midstream.errors import Exit, MidstreamError, UsageError
from midstream.headless.confirmation import confirmed
from midstream.headless.migration.migration_request import is_path, request_of
from midstream.operations.create_slice import create_slice
from midstream.operations.fleet_snapshot import fleet_snapshot
from midstream.output import Output
from midstream.providers import fleet_slices

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.fleet.slice_target import SliceTarget

READ_ONLY_MODES = ("status", "checkpoints", "clean", "compare", "diff", "verify")  # modes that register no SSH key


def with_slices(fleet: Fleet, options: argparse.Namespace, output: Output, engine: tuple[str, ...] = ()) -> Fleet:
    """Return the fleet with the workers of its slices.

    Creates the slice of the target of --launch or --migrate if it does not exist and its price is accepted.
    """
    known = fleet.slices
    if not known or options.delete:
        return fleet
    read_only = any(getattr(options, mode) not in (None, False) for mode in READ_ONLY_MODES)
    found = fleet_slices.with_slices(fleet, output.message, touch=not read_only)
    wanted: str = (options.launch and options.on) or (options.migrate and options.to) or ""
    if wanted in found.unavailable and known[wanted].create:
        _check_request(found, options, known[wanted], engine)
        _check_fit(found, options, wanted, engine, output)
        return _created(found, wanted, known[wanted], options, output)
    if wanted in found.unavailable and options.dry_run:
        _check_fit(found, options, wanted, engine, output)  # then the plan says why there is none
    return found


def _check_request(fleet: Fleet, options: argparse.Namespace, target: SliceTarget, engine: tuple[str, ...]) -> None:
    """Refuse a request that would fail once the slice exists, before it costs money."""
    from midstream.headless.migration.import_run import host_path_of, run_id_of
    from midstream.hosts.host_pool import HostPool
    from midstream.launch.config_file import read_config
    from midstream.launch.engine_flags import keep_name, named_run
    from midstream.launch.input_check import read_inputs

    if options.launch:
        named_run(options.run_id, engine)
        read_config(options.launch)
        read_inputs(options.launch, engine)
        return
    if is_path(options.migrate):
        keep_name(run_id_of(host_path_of(fleet, options.migrate).path), engine)
        return
    from midstream.migrate.planning.planner import check_ahead

    hosts = HostPool(fleet)
    try:
        request = request_of(options, options.migrate, "", engine)
        store = fleet.store_of_target(options.to)
        check_ahead(fleet, hosts, fleet_snapshot(fleet, hosts), request, store, target.device_count)
    finally:
        hosts.close()


def _check_fit(fleet: Fleet, options: argparse.Namespace, name: str, engine: tuple[str, ...], output: Output) -> None:
    """Refuse a slice that the step cannot fit, found by compiling for it.

    Raises:
        MidstreamError: It does not fit, or there is no checkpoint to import.
    """
    from midstream.compare.slice_fit import require_fit
    from midstream.compare.subject import of_import
    from midstream.headless.fleet.check_slice import subject_for
    from midstream.headless.migration.import_run import host_path_of
    from midstream.hosts.host_pool import HostPool
    from midstream.launch.progress_line import reporter

    hosts = HostPool(fleet)
    try:
        report = reporter(output)
        if options.migrate and is_path(options.migrate):
            source = host_path_of(fleet, options.migrate)
            imported = of_import(fleet, hosts.get(source.host), source.path, options.config or "", engine)
            found = require_fit(fleet, hosts, name, lambda: imported, report)
        else:
            subject_of = subject_for(fleet, hosts, options.launch or "", options.migrate or "", engine)
            found = require_fit(fleet, hosts, name, subject_of, report)
    finally:
        hosts.close()
    if found is not None:
        output.value({"event": "candidate", **found.to_json()})


def _created(fleet: Fleet, name: str, target: SliceTarget, options: argparse.Namespace, output: Output) -> Fleet:
    place, price = fleet_slices.slice_path(name, target), fleet_slices.price_text(target)
    output.value({"event": "price", "target": name, "slice": place, "class": target.price_class, "text": price})
    output.message(f"midstream: {name} does not exist; it would be created as {place}: {price}")
    if options.dry_run:
        raise UsageError(
            f"{name} does not exist, so no migration to it can be planned",
            f"with --yes and without --dry-run it is created: {price}",
            Exit.REFUSED,
        )
    if not options.yes and not confirmed(f"Create {name}? It costs money until it is deleted", output):
        raise MidstreamError(f"{name} does not exist: {price}", "--yes creates it", Exit.REFUSED)
    event = {"event": "created", "target": name, "slice": place, "class": target.price_class}
    found = create_slice(fleet, name, output.message, lambda: output.value(event))
    options.created_slice = name
    return found


def settle_unused_slice(fleet: Fleet, options: argparse.Namespace, code: int, output: Output) -> None:
    """Delete a slice created for a refused command; keep it for a failed one.

    Capacity is scarce, so that a failed command keeps its slice. Both outcomes are reported.
    """
    name = getattr(options, "created_slice", "")
    if not name:
        return
    path = fleet_slices.slice_path(name, fleet.slices[name])
    if code in (Exit.REFUSED, Exit.USAGE) and not options.keep_slice:
        output.message(f"midstream: deleting {name}, created for this refused command (--keep-slice keeps it)")
        try:
            fleet_slices.delete(fleet, path, output.message)
        except MidstreamError as error:
            output.message(f"midstream: {error}")
        else:
            output.value({"event": "deleted", "target": name, "slice": path})
            output.message(f"midstream: {path} is deleted and costs nothing more")
            return
    output.value({"event": "kept", "target": name, "slice": path})
    output.message(f"midstream: {name} was created for this command and costs money until midstream --delete {name}")
