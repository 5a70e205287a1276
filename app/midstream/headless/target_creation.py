"""Creation of the target of --launch or --migrate."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from midstream.errors import Exit, MidstreamError, UsageError
from midstream.headless.confirmation import confirmed
from midstream.headless.migration_request import is_path, request_of
from midstream.json_events.fleet_events import CreatedEvent, DeletedEvent, KeptEvent, PriceEvent
from midstream.operations.create_target import PODS, CreatableTarget, creatable_target, create_target
from midstream.operations.delete_target import delete_target
from midstream.operations.fleet_snapshot import fleet_snapshot
from midstream.output import Output
from midstream.providers import fleet_slices

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet

READ_ONLY_MODES = ("status", "checkpoints", "clean", "compare", "diff", "verify")  # modes that register no SSH key


def with_target(fleet: Fleet, options: argparse.Namespace, output: Output, engine: tuple[str, ...] = ()) -> Fleet:
    """Return the fleet with the workers of its slices.

    Creates the target of --launch or --migrate if it does not exist and the user agrees.
    """
    if options.delete:
        return fleet
    read_only = any(getattr(options, mode) not in (None, False) for mode in READ_ONLY_MODES)
    looked_up = fleet_slices.with_slices(fleet, output.message, touch=not read_only)
    name: str = (options.launch and options.on) or (options.migrate and options.to) or ""
    missing = creatable_target(looked_up, name) if name else None
    if missing is not None:
        _check_request(looked_up, options, engine)
    if name in looked_up.unavailable and (missing is not None or options.dry_run):
        _check_fit(
            looked_up, options, name, engine, output
        )  # without a target to create, the plan says why there is none
    return looked_up if missing is None else _created(looked_up, missing, options, output)


def _check_request(fleet: Fleet, options: argparse.Namespace, engine: tuple[str, ...]) -> None:
    """Refuse a request that would fail once the target exists, before it costs money."""
    from midstream.hosts.host_pool import HostPool
    from midstream.launch.config_file import read_config
    from midstream.launch.engine_flags import checked_flags, named_run
    from midstream.launch.input_check import read_inputs
    from midstream.operations.import_run import host_path_of, run_id_of
    from midstream.operations.plan_migration import check_ahead
    from midstream.trainers.run_file_parser import names_run_file

    if options.launch:
        named_run(options.run_id, engine)
        if not names_run_file(Path(options.launch)):
            read_config(options.launch)
            read_inputs(options.launch, engine)
        return
    if is_path(options.migrate):
        checked_flags(run_id_of(host_path_of(fleet, options.migrate).path), engine)
        return
    hosts = HostPool(fleet)
    try:
        check_ahead(hosts, fleet_snapshot(hosts), request_of(options, options.migrate, "", engine))
    finally:
        hosts.close()


def _check_fit(fleet: Fleet, options: argparse.Namespace, name: str, engine: tuple[str, ...], output: Output) -> None:
    """Refuse a slice that the step cannot fit, found by compiling for it.

    Raises:
        MidstreamError: It does not fit, or there is no checkpoint to import.
    """
    from midstream.compare.slice_fit import require_fit
    from midstream.compare.subject import of_import
    from midstream.headless.check_slice import subject_for
    from midstream.hosts.host_pool import HostPool
    from midstream.launch.progress_line import reporter
    from midstream.operations.import_run import host_path_of

    hosts = HostPool(fleet)
    try:
        report = reporter(output)
        if options.migrate and is_path(options.migrate):
            source = host_path_of(fleet, options.migrate)
            imported = of_import(fleet, hosts.get(source.host), source.path, options.config or "", engine)
            comparison = require_fit(hosts, name, lambda: imported, report)
        else:
            subject_of = subject_for(hosts, options.launch or "", options.migrate or "", engine)
            comparison = require_fit(hosts, name, subject_of, report)
    finally:
        hosts.close()
    if comparison is not None:
        output.event(comparison.event())


def _created(fleet: Fleet, missing: CreatableTarget, options: argparse.Namespace, output: Output) -> Fleet:
    name, price = missing.target, missing.price
    event = PriceEvent(target=name, slice=missing.path, class_=missing.price_class, text=price)
    output.event(event)
    output.message(f"midstream: {missing.question}")
    if options.dry_run:
        raise UsageError(
            f"{name} does not exist, so no migration to it can be planned",
            f"with --yes and without --dry-run it is created: {price}",
            Exit.REFUSED,
        )
    if not options.yes and not confirmed(f"Create {name}? It {missing.lasts}", output):
        raise MidstreamError(f"{name} does not exist: {price}", "--yes creates it", Exit.REFUSED)
    created = CreatedEvent(target=name, slice=missing.path, class_=missing.price_class)
    complete = create_target(fleet, missing, output.message, lambda: output.event(created))
    options.created = missing
    return complete


def settle_unused(fleet: Fleet, options: argparse.Namespace, code: int, output: Output) -> None:
    """Delete a target created for a refused command; keep it for a failed one.

    Capacity is scarce, so that a failed command keeps its slice. Both outcomes are reported.
    """
    target: CreatableTarget | None = getattr(options, "created", None)
    if target is None:
        return
    name, path = target.target, target.path
    if code in (Exit.REFUSED, Exit.USAGE) and not options.keep_slice:
        output.message(f"midstream: deleting {name}, created for this refused command (--keep-slice keeps it)")
        try:
            deleted = delete_target(fleet, name if target.price_class == PODS else path, output.message)
        except MidstreamError as error:
            output.message(f"midstream: {error}")
        else:
            output.event(DeletedEvent(target=name, slice=path))
            output.message(f"midstream: {deleted}")
            return
    output.event(KeptEvent(target=name, slice=path))
    output.message(f"midstream: {name} was created for this command and {target.lasts}")
