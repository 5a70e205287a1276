"""Name what killed processes left behind in run directories; remove it where asked to."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from midstream.errors import DamagedError, Exit, HostError, UsageError
from midstream.output import Output, size, table

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host import Host


def clean(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """Leftovers of one run, or of all, on every host that answers. Without ``--yes`` nothing is touched."""
    from midstream.hosts.host_pool import Hosts

    rows = [("HOST", "RUN", "LEFTOVER", "KIND", "SIZE", "")]
    known, silent, removable = set(), [], 0
    hosts = Hosts(fleet)
    try:
        for name in fleet.hosts:
            host = hosts.peek(name)
            try:
                host.connect()
                run_ids = host.call("runs.run_state.list_runs", root=host.root)
            except HostError as error:
                silent.append(name)
                output.talk(f"midstream: {name} is left out: {error}")
                continue
            known |= set(run_ids)
            for run_id in run_ids:
                if options.clean and run_id != options.clean:
                    continue
                try:
                    removable += _in_bucket(fleet, host, run_id, options.yes, rows, output)
                    found = host.call("runs.leftovers.leftovers", root=host.root, run_id=run_id)
                except DamagedError as error:
                    if options.clean:
                        raise
                    output.talk(f"midstream: {run_id} is left out: {error}")
                    continue
                names = [entry["path"] for entry in found if not entry["kept"]]
                gone = set()
                if options.yes and names:
                    gone = set(
                        host.call("runs.leftovers.remove", timeout=None, root=host.root, run_id=run_id, names=names)
                    )
                for entry in found:
                    removable += not entry["kept"] and entry["path"] not in gone
                    word = "removed" if entry["path"] in gone else entry["kept"] and f"kept: {entry['kept']}"
                    rows.append((name, run_id, entry["path"], entry["kind"], size(entry["bytes"]), word))
                    if output.as_json:
                        removed = entry["path"] in gone
                        output.value({"event": "leftover", "host": name, "run": run_id, **entry, "removed": removed})
    finally:
        hosts.close()
    if options.clean and options.clean not in known:
        raise UsageError(
            f"no run {options.clean!r}",
            f"known: {', '.join(sorted(known)) or 'none'}"
            + (f"; not answering: {', '.join(silent)}" if silent else ""),
        )
    if not options.clean and (fleet.comes_and_goes or fleet.google.projects):
        from midstream.headless.tpu_slices import leftovers

        removable += leftovers(fleet, options.yes, output)
    output.value(
        {"event": "result", "ok": True, "leftovers": len(rows) - 1, "removable": removable},
        table(rows) if len(rows) > 1 else ["nothing is left over"],
    )
    if removable and not options.yes:
        output.talk(
            f"midstream: nothing was removed; --clean --yes removes the {removable} without a reason to keep them"
        )
    return Exit.DONE


def _in_bucket(fleet: Fleet, host: Host, run_id: str, agreed: bool, rows: list[tuple[str, ...]], output: Output) -> int:
    """The leftovers of a run whose checkpoints lie in a bucket; how many could be removed and were not."""
    store = host.call("verify.tree.store_of", root=host.root, run_id=run_id)
    if store is None:
        return 0
    from midstream.stores.bucket_access import access_for
    from midstream.stores.bucket_checkpoints import BucketRun

    there = BucketRun(store, run_id, access_for(fleet, store))
    left = 0
    for entry in there.leftovers(dict(host.call("runs.leftovers.running_writer", root=host.root, run_id=run_id))):
        removed = agreed and not entry["kept"]
        if removed:
            there.remove(entry["path"])
        left += not entry["kept"] and not removed
        word = "removed" if removed else entry["kept"] and f"kept: {entry['kept']}"
        rows.append((host.name, run_id, entry["path"], entry["kind"], size(entry["bytes"]), word))
        if output.as_json:
            output.value({"event": "leftover", "host": host.name, "run": run_id, **entry, "removed": removed})
    return left
