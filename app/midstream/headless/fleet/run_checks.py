"""`--check TARGET` and `--doctor`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from midstream.check.check_result import FAIL, WARN, Check
from midstream.errors import Exit
from midstream.json_events.fleet_events import CheckEvent
from midstream.json_events.result_event import CheckResult
from midstream.output import Output

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet

REHEARSAL_CONFIG = "configs/gpt2_nano.yaml"  # without --rehearse CONFIG
SIGNS = {"pass": "ok  ", "warn": "warn", "fail": "FAIL"}


def check(fleet: Fleet, options: argparse.Namespace, engine: tuple[str, ...], output: Output) -> int:
    """Check a target without starting a run.

    With --rehearse, also compile a config there.
    """
    from midstream.check.rehearsal import rehearse
    from midstream.check.target_checks import check_target
    from midstream.hosts.host_pool import HostPool
    from midstream.launch.progress_line import reporter

    if options.rehearse is not None and options.check in fleet.unavailable:
        from midstream.headless.fleet.check_slice import check_slice

        # There is no host to rehearse on: the compiler alone says whether it fits.
        config = options.rehearse or REHEARSAL_CONFIG
        return _end(
            _print([check_slice(fleet, options.check, config, engine, output)], output),
            output,
            target=options.check,
        )
    if options.check not in fleet.target_names:
        found = _advice(fleet, options, output)
        if found is not None:
            return found
    target = fleet.target(options.check)
    hosts = HostPool(fleet)
    try:
        checks = _print(check_target(fleet, hosts, target), output)
        failed = any(check.state == FAIL for check in checks)
        if options.rehearse is not None and failed:
            from midstream.headless.fleet.check_slice import check_busy

            # Nothing is rehearsed beside what a check found: the compiler alone says whether the step fits.
            fit = check_busy(fleet, target.name, options.rehearse or REHEARSAL_CONFIG, engine, output)
            checks += _print([fit] if fit is not None else [], output)
        elif options.rehearse is not None:
            report = reporter(output, verbose=options.verbose)
            checks += _print(
                rehearse(fleet, hosts, target, options.rehearse or REHEARSAL_CONFIG, engine, report), output
            )
    finally:
        hosts.close()
    return _end(checks, output, target=target.name)


def _advice(fleet: Fleet, options: argparse.Namespace, output: Output) -> int | None:
    """Advise before a run is moved; return the exit code, or None for an unknown run."""
    from midstream.check.trainer_advice import advise
    from midstream.hosts.host_pool import HostPool
    from midstream.operations.fleet_snapshot import fleet_snapshot, run_of

    hosts = HostPool(fleet)
    try:
        snapshot = fleet_snapshot(fleet, hosts)
        if not snapshot.copies(options.check):
            return None
        checks = _print(advise(hosts, run_of(snapshot, options.check)), output)
    finally:
        hosts.close()
    return _end(checks, output, run=options.check)


def doctor(options: argparse.Namespace, output: Output) -> int:
    """Check this machine."""
    from midstream.check.doctor import doctor as examine

    return _end(_print(examine(options.fleet), output), output)


def _print(results: Iterable[Check], output: Output) -> list[Check]:
    """Print each check as it completes."""
    checks = []
    for each in results:
        checks.append(each)
        where = f"{each.host}: " if each.host else ""
        lines = [f"{SIGNS[each.state]}  {where}{each.name}: {each.detail}"]
        if each.hint:
            lines.append(f"      -> {each.hint}")
        output.event(CheckEvent(**vars(each)), lines)
    return checks


def _end(checks: list[Check], output: Output, *, target: str | None = None, run: str | None = None) -> int:
    """Print the result. Return the exit code, 3 if a check failed."""
    count = {state: sum(each.state == state for each in checks) for state in SIGNS}
    code = Exit.REFUSED if count[FAIL] else Exit.DONE
    words = f"{count['pass']} passed, {count[WARN]} with a warning, {count[FAIL]} failed"
    result = CheckResult(
        ok=not count[FAIL],
        exit_code=int(code),
        target=target,
        run=run,
        pass_=count["pass"],
        warn=count[WARN],
        fail=count[FAIL],
    )
    output.event(result, ["", words])
    return code
