"""`--verify MIGRATION`: a certificate checked again against what lies on the hosts today."""

from __future__ import annotations

import argparse
from collections import Counter

from midstream.errors import Exit, MidstreamError
from midstream.headless.status import plain
from midstream.output import Output

MARKS = {"pass": "ok  ", "warn": "warn", "fail": "FAIL"}


def is_migration(name: str) -> bool:
    """Whether ``name`` is the id of a migration, or the only beginning of one, its date at least."""
    from midstream.migrate.execution.migration_directory import migration_ids

    known = migration_ids()
    return name in known or (len(name) >= 8 and sum(each.startswith(name) for each in known) == 1)


def recheck(options: argparse.Namespace, output: Output) -> int:
    """Every claim of the certificate anew. NOT_CERTIFIED where anything contradicts it."""
    from midstream.hosts.host_pool import Hosts
    from midstream.migrate.execution.migration_directory import MigrationDirectory
    from midstream.migrate.model import FAIL, WARN
    from midstream.migrate.proof.recheck import recheck as checks

    directory = MigrationDirectory.find(options.verify)
    view = directory.view()
    hosts = Hosts(directory.fleet())
    found = []
    try:
        for check in checks(hosts, view):
            found.append(check)
            output.value({"event": "check", **plain(check)}, f"{MARKS[check.state]} {check.name}: {check.detail}")
    finally:
        hosts.close()
    states = Counter(check.state for check in found)
    failed = next((check for check in found if check.state == FAIL), None)
    code = Exit.NOT_CERTIFIED if failed else Exit.DONE
    result = {"ok": failed is None, "exit_code": int(code), "migration": view.migration, "run": view.plan.run_id}
    output.value({"event": "result", **result, "not_checked": states[WARN]})
    if failed is not None:
        output.talk(f"midstream: {MidstreamError(f'not certified: {failed.name}: {failed.detail}', failed.fix)}")
    elif states[WARN]:
        output.talk(f"midstream: {states[WARN]} of {len(found)} could not be checked any more; nothing contradicts it")
    return code
