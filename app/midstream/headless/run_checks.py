"""`--check TARGET` and `--doctor`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from midstream.check.check_result import FAIL, WARN, Check
from midstream.errors import Exit
from midstream.headless.check_lines import SIGNS, print_check
from midstream.json_events.result_event import CheckResult
from midstream.output import Output

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet

REHEARSAL_CONFIG = "configs/gpt2_nano.yaml"  # without --rehearse CONFIG


def check(fleet: Fleet, options: argparse.Namespace, engine: tuple[str, ...], output: Output) -> int:
    """Check a target without starting a run.

    With --rehearse, also compile a config there.
    """
    from midstream.check.rehearsal import rehearse
    from midstream.hosts.host_pool import HostPool
    from midstream.launch.progress_line import reporter
    from midstream.operations import check as operation

    name, config = options.check, options.rehearse or REHEARSAL_CONFIG
    if options.rehearse is not None and name in fleet.unavailable:
        from midstream.headless.check_slice import check_slice

        # There is no host to rehearse on: the compiler alone says whether it fits.
        return _end(_print([check_slice(fleet, name, config, engine, output)], output), output, target=name)
    hosts = HostPool(fleet)
    try:
        checks = _print(operation.check(hosts, name), output)
        if name not in fleet.target_names:
            return _end(checks, output, run=name)
        failed = any(check.state == FAIL for check in checks)
        if options.rehearse is not None and failed:
            from midstream.headless.check_slice import check_busy

            # Nothing is rehearsed beside what a check found: the compiler alone says whether the step fits.
            fit = check_busy(fleet, name, config, engine, output)
            checks += _print([fit] if fit is not None else [], output)
        elif options.rehearse is not None:
            report = reporter(output, verbose=options.verbose)
            checks += _print(rehearse(hosts, fleet.target(name), config, engine, report), output)
    finally:
        hosts.close()
    return _end(checks, output, target=name)


def doctor(options: argparse.Namespace, output: Output) -> int:
    """Check this machine."""
    from midstream.check.doctor import doctor as examine

    return _end(_print(examine(options.fleet), output), output)


def _print(results: Iterable[Check], output: Output) -> list[Check]:
    """Print each check as it completes."""
    checks = []
    for result in results:
        checks.append(result)
        print_check(result, output)
    return checks


def _end(checks: list[Check], output: Output, *, target: str | None = None, run: str | None = None) -> int:
    """Print the result. Return the exit code, 3 if a check failed."""
    count = {state: sum(check.state == state for check in checks) for state in SIGNS}
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
