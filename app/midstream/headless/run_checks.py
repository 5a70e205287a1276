"""``--check TARGET`` and ``--doctor``: what is fit and what is not, as text and as JSON lines."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from midstream.check.check_result import FAIL, WARN, Check
from midstream.errors import Exit
from midstream.output import Output

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet

REHEARSED = "configs/gpt2_nano.yaml"  # where no other config is named
SIGNS = {"pass": "ok  ", "warn": "warn", "fail": "FAIL"}


def check(fleet: Fleet, options: argparse.Namespace, engine: tuple[str, ...], output: Output) -> int:
    """All that can be known of a target before something is started there; with --rehearse, whether a config runs."""
    from midstream.bundled_files import shipped
    from midstream.check.rehearsal import rehearse
    from midstream.check.target_checks import check_target
    from midstream.hosts.host_pool import Hosts

    target = fleet.target(options.check)
    hosts = Hosts(fleet)
    try:
        told = _tell(check_target(fleet, hosts, target), output)
        if options.rehearse is not None and not any(check.state == FAIL for check in told):
            config = Path(options.rehearse) if options.rehearse else shipped(REHEARSED)
            told += _tell(rehearse(fleet, hosts, target, config, engine, output.talk), output)
    finally:
        hosts.close()
    return _end(told, output, target=target.name)


def doctor(options: argparse.Namespace, output: Output) -> int:
    """This machine's side."""
    from midstream.check.doctor import doctor as examine

    return _end(_tell(examine(options.fleet), output), output)


def _tell(checks: Iterable[Check], output: Output) -> list[Check]:
    """Print each check as it comes."""
    told = []
    for each in checks:
        told.append(each)
        where = f"{each.host}: " if each.host else ""
        lines = [f"{SIGNS[each.state]}  {where}{each.name}: {each.detail}"]
        if each.hint:
            lines.append(f"      -> {each.hint}")
        value = {"event": "check", **{key: item for key, item in vars(each).items() if item}}
        output.value(value, lines)
    return told


def _end(told: list[Check], output: Output, **fields: str) -> int:
    """The result, and the exit code: 3 where a check failed."""
    count = {state: sum(each.state == state for each in told) for state in SIGNS}
    code = Exit.REFUSED if count[FAIL] else Exit.DONE
    words = f"{count['pass']} fit, {count[WARN]} with a warning, {count[FAIL]} failed"
    output.value({"event": "result", "ok": not count[FAIL], "exit_code": int(code), **fields, **count}, ["", words])
    return code
