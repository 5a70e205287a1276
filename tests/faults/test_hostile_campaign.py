"""Commands against hostile hosts, many times.

    python tests/faults/test_hostile_campaign.py [--cases 1000] [--seed 1] [--jobs 2] [--results FILE] [--only N ...]
                                                 [--calls]

In each case a real SSH host answers, sends or stores hostile data: see ``simulators/hostile/cases.py``. Afterwards no
file is outside its place, nothing was executed, memory stayed within bounds, no traceback was shown, other runs and
hosts are not changed, and each refusal is one line that names the host. With ``--calls`` each case is an answer to one
function that the app declares, every function in turn: see ``simulators/hostile/calls.py``.

Results are appended, one line per case: an interrupted campaign continues where it was. A case that broke a promise is
written to a file ``.broken.jsonl`` beside them; ``--only N`` runs it alone and shows its output.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script

from midstream.hosts.rpc.result_checks import name_of, result_of
from simulators.hostile import calls, cases, checks, moves
from simulators.hostile.fleet import Fleet, Verdict
from simulators.hostile.operator_calls import SAMPLES
from simulators.sshd import SSHD
from support.paths import REPOSITORY
from support.remote_functions import declared_functions, function_of

RESULTS = REPOSITORY / "docs/campaigns/hostile-host.jsonl"
SAMPLE, CALLS_SAMPLE = 16, 4
CASES = 1000
MOVES = 48  # one case in 48 is a complete migration


@pytest.mark.system
def test_hostile_campaign_sample(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Run a sample of the quick cases, the first one of ``--status``, and of the cases of one function.

    $MIDSTREAM_SEED draws other cases.
    """
    if not SSHD:
        pytest.skip("no sshd: apt-get install openssh-server")
    seed = int(os.environ.get("MIDSTREAM_SEED", "7"))
    print(f"seed {seed}")
    fleet = Fleet(tmp_path_factory.mktemp("hostile"))
    try:
        fleet.restore()
        drawn = ((number, cases.draw(fleet, seed, number)) for number in itertools.count())
        status = next(number for number, case in drawn if case.commands[0] == ["--status"])
        quick = (number for number, case in drawn if cases.is_quick(case))
        for number in [status, *itertools.islice(quick, SAMPLE - 1)]:
            row = one(fleet, seed, number)
            assert not row["broken"], f"seed {seed}, case {number}: {json.dumps(row, indent=1)}"
        for number in random.Random(seed).sample(range(len(calls.WAYS)), CALLS_SAMPLE):
            row = call(fleet, seed, number)
            assert not row["broken"], f"seed {seed}, call {number}: {json.dumps(row, indent=1)}"
    finally:
        fleet.close()


def test_every_declared_function_has_a_hostile_case() -> None:
    declared = {name_of(function) for function in declared_functions()}
    assert declared - calls.covered() == calls.NOT_COVERED.keys()
    assert calls.covered() <= declared, "a case names a function that does not exist"
    for name, value in SAMPLES.items():
        result_of("bad", function_of(name), {}, {"value": value})


def test_hostile_campaign_results() -> None:
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    assert len({(row["seed"], row["case"], row["place"] == "call") for row in rows}) == len(rows) >= CASES
    for row in rows:
        assert row["place"] in (*cases.PLACES, "move", "call")
        assert all(code in range(6) for code in row["codes"])
        assert row["peak_mib"] <= 64
        assert "broken" not in row
    met = {changed.partition(": ")[0] for row in rows if row["place"] == "call" for changed in row["changed"]}
    assert met >= {name for way in calls.WAYS.values() for name in way.functions}, "of each function an answer changed"


def one(fleet: Fleet, seed: int, number: int, *, show: bool = False) -> dict[str, Any]:
    """Run a case; return its row, with the broken promises as ``broken``."""
    fleet.restore()
    case = cases.draw(fleet, seed, number)
    verdict = checks.run(fleet, case)
    return _row(fleet, verdict, show, seed=seed, case=number, place=case.place, what=case.what)


def call(fleet: Fleet, seed: int, number: int, *, show: bool = False) -> dict[str, Any]:
    """Run a case of one function; return its row."""
    fleet.restore()
    case = calls.draw(fleet, seed, number)
    verdict = checks.run(fleet, case)
    return _row(fleet, verdict, show, seed=seed, case=number, place=case.place, what=case.what)


def move(fleet: Fleet, seed: int, number: int, *, show: bool = False) -> dict[str, Any]:
    """Run a case that is a complete migration; return its row."""
    fleet.restore()
    case = moves.draw(fleet, seed, number)
    verdict = moves.run(fleet, case)
    for ended in verdict.ended:
        verdict.broken += checks.of_output(None, ended)
    how = f"{case['mode']} to {case['to']}{', it trains' if case['running'] else ''}"
    return _row(fleet, verdict, show, seed=seed, case=number, place="move", what=f"{case['what']}; {how}")


def _row(fleet: Fleet, verdict: Verdict, show: bool, **row: Any) -> dict[str, Any]:
    here = str(fleet.room)
    for ended in verdict.ended if show else ():
        print(f"$ midstream {' '.join(ended.argv)}\n{ended.stdout.decode(errors='backslashreplace')[-8000:]}")
        print(f"{ended.stderr.decode(errors='backslashreplace')[-8000:]}exit {ended.code}, {ended.seconds} s")
    return {
        **row,
        "changed": [each.replace(here, "")[:120] for each in verdict.changed[:3]],
        "hits": len(verdict.changed),
        "commands": [_shown(ended.argv).replace(here, "") for ended in verdict.ended],
        "codes": [ended.code for ended in verdict.ended],
        "seconds": round(sum(ended.seconds for ended in verdict.ended), 1),
        "peak_mib": max((ended.memory for ended in verdict.ended), default=0) >> 10,
        "broken": [each.replace(here, "ROOM") for each in verdict.broken],
    }


def _shown(argv: list[str]) -> str:
    return " ".join(word for word in argv if not word.startswith("/") and word != "--fleet")


def main() -> int:
    flags = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    flags.add_argument("--cases", type=int, default=CASES)
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("--jobs", type=int, default=1, help="cases at a time, each with hosts of its own")
    flags.add_argument("--job", type=int, default=0, help="which of the jobs this process is")
    flags.add_argument("--seconds", type=float, default=0.0, help="stop after that long; 0: when all cases are done")
    flags.add_argument("--results", type=Path, default=RESULTS)
    flags.add_argument("--calls", action="store_true", help="cases of one function each")
    flags.add_argument("--only", type=int, nargs="*", help="these cases alone, with what was printed")
    options = flags.parse_args()
    others = []
    if options.jobs > 1 and not options.job and not options.only:
        others = [
            subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--job", str(job)])
            for job in range(1, options.jobs)
        ]
    code = part(options)
    return max([code, *(other.wait() for other in others)])


def part(options: argparse.Namespace) -> int:
    """Run the cases of one job until the time is up; return 1 if a promise was broken."""
    began = time.monotonic()
    room = Path(tempfile.mkdtemp(prefix="midstream-hostile-"))
    broken = options.results.with_suffix(".broken.jsonl")
    fleet = Fleet(room, trained=not options.calls)
    code = 0
    counts: Counter[str] = Counter()
    try:
        for number in options.only or range(options.job, options.cases, options.jobs):
            case = (options.seed, number, options.calls)
            if not options.only and case in done(options.results) | done(broken):
                continue
            if options.seconds and time.monotonic() - began > options.seconds:
                break
            happen = call if options.calls else move if number % MOVES == MOVES - 1 else one
            row = happen(fleet, options.seed, number, show=bool(options.only))
            if row["broken"]:
                code = 1
            else:
                del row["broken"]
            if not options.only:
                with (broken if "broken" in row else options.results).open("a") as lines:
                    lines.write(json.dumps(row) + "\n")
            counts["broken" if "broken" in row else "kept"] += 1
            if options.only or "broken" in row:
                print(f"{time.monotonic() - began:6.1f}  {json.dumps(row)}", flush=True)
    finally:
        fleet.close()
        shutil.rmtree(room, ignore_errors=True)
    print(f"{time.monotonic() - began:6.1f}  {dict(counts)}", flush=True)
    return code


def done(results: Path) -> set[tuple[int, int, bool]]:
    """Return ``(seed, case, whether it is one of a function)`` of every case in the results."""
    lines = results.read_text().splitlines() if results.exists() else []
    return {(row["seed"], row["case"], row["place"] == "call") for row in map(json.loads, lines)}


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # hosts are ended
    sys.exit(main())
