"""`midstream --demo`: two local targets and a real run between them, on this machine alone.

The run trains a small GPT-2 on the standard library sources of this Python. `small` has two virtual CPU devices,
`large` four; nothing is downloaded and nothing is written outside `$MIDSTREAM_STATE/demo`.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from midstream.errors import Exit, HostError, MidstreamError
from midstream.output import Output, has_screen
from midstream.shipped import shipped

if TYPE_CHECKING:
    from midstream.fleet.config import Fleet
    from midstream.hosts.open import Hosts

CONFIG = "configs/gpt2_nano.yaml"
RUN = "demo"
MOVE_AFTER = 12  # steps on `small` before the headless demo moves the run
HEALTHY_STEPS = 8
START_TIMEOUT = 300.0
CLOSING = 120.0  # seconds that a move under way may take to end once the screen is closed

FLEET = """\
# The embedded fleet of `midstream --demo`.
hosts:
  small: {{type: local, devices: 2, root: "{root}/small"}}
  large: {{type: local, devices: 4, root: "{root}/large"}}
"""


def run(options: argparse.Namespace, output: Output) -> int:
    """The demo with a screen, or without one (`--headless`)."""
    _needs_the_engine()
    if options.headless:
        return _headless(output)
    return _screen(options, output)


def _needs_the_engine() -> None:
    import importlib.util

    if importlib.util.find_spec("jax") is None or importlib.util.find_spec("haliax") is None:
        raise MidstreamError(
            "the demo trains on this machine, and the engine's packages are not installed",
            "pip install 'midstream[engine]'",
            Exit.USAGE,
        )


def _fleet(root: Path) -> Fleet:
    from midstream.fleet.load import load_fleet

    root.mkdir(parents=True, exist_ok=True)
    file = root / "fleet.yaml"
    file.write_text(FLEET.format(root=root))
    return load_fleet(file)


def _demo_root() -> Path:
    from midstream.migrate.directory import state_directory

    return (state_directory() / "demo").absolute()


# -------------------------------------------------------------------------------------------------- with a screen


def _screen(options: argparse.Namespace, output: Output) -> int:
    if not has_screen():
        raise MidstreamError(
            "the demo's screen needs a terminal", "midstream --demo --headless does the same without one", Exit.USAGE
        )
    from midstream.hosts.open import Hosts
    from midstream.tui.app import run_tui

    fleet = _fleet(_demo_root())
    hosts = Hosts(fleet)
    try:
        _ensure_running(fleet, hosts, output)
        return run_tui(fleet, hosts, readonly=options.readonly, ascii_only=options.ascii, start_run=RUN).code
    finally:
        _quieten(fleet, hosts, output)
        hosts.close()


def _quieten(fleet: Fleet, hosts: Hosts, output: Output) -> None:
    """A demo must not go on eating the machine once its screen is closed: stop the run, and wherever a move that is
    under way starts it again."""
    deadline = time.monotonic() + CLOSING
    moving = True
    while moving and time.monotonic() < deadline:
        moving = _is_moving()
        for name, attempt in _living(fleet, hosts, RUN):
            output.talk(f"stopping the demo's run on {name}; it saves, and the next midstream --demo goes on with it")
            _stop(hosts, name, RUN, attempt, output)
        if moving:
            time.sleep(0.5)
    if moving:
        output.talk("midstream: a move of the demo's run goes on; midstream --status shows it")


def _is_moving() -> bool:
    from midstream.migrate import model
    from midstream.migrate.directory import list_migrations

    ours = [view for view in list_migrations() if (view.plan.run_id, view.state) == (RUN, model.RUNNING)]
    return any({view.plan.source, view.plan.target_host} == {"small", "large"} for view in ours)


def _living(fleet: Fleet, hosts: Hosts, run_id: str) -> Iterator[tuple[str, int]]:
    for name in fleet.hosts:
        host = hosts.get(name)
        if run_id in host.call("runs.list_runs", root=host.root):
            described = host.call("runs.describe", root=host.root, run_id=run_id)
            if described["alive"]:
                yield name, described["attempt"]


def _stop(hosts: Hosts, name: str, run_id: str, attempt: int, output: Output) -> None:
    from midstream.launch.start import stop_attempt

    try:
        stop_attempt(hosts.get(name), run_id, attempt, timeout=120.0)
    except MidstreamError as error:
        output.talk(f"midstream: {error}")


def _ensure_running(fleet: Fleet, hosts: Hosts, output: Output) -> None:
    """Where the run is already known, its newest copy goes on; a finished one makes place for a new one."""
    from midstream.launch.run import launch_run
    from midstream_engine import records

    if any(True for _ in _living(fleet, hosts, RUN)):
        return
    place, epoch = "small", 0
    for name in fleet.hosts:
        host = hosts.get(name)
        if RUN not in host.call("runs.list_runs", root=host.root):
            continue
        described = host.call("runs.describe", root=host.root, run_id=RUN)
        status, fence = described["status"], described["fence"]
        if status and status["state"] == records.FINISHED:
            shutil.rmtree(_demo_root() / "small" / "runs", ignore_errors=True)
            shutil.rmtree(_demo_root() / "large" / "runs", ignore_errors=True)
            place, epoch = "small", 0
            break
        if fence and fence["epoch"] > epoch:
            place, epoch = fence["holder"], fence["epoch"]
    output.talk(f"starting a small GPT-2 on {place} ({shipped(CONFIG)})")
    launch_run(hosts, fleet, place, shipped(CONFIG), RUN, (), say=output.talk)


# ----------------------------------------------------------------------------------------------- without a screen


def _headless(output: Output) -> int:
    """Launch on `small`, migrate to `large` at a step above 0, certify, stop. Exit 0 when the certificate is valid."""
    from midstream import headless
    from midstream.flags import parser
    from midstream.hosts.open import Hosts
    from midstream.launch.run import launch_run
    from midstream.watch.watcher import Watch

    run_id = f"demo-{secrets.token_hex(3)}"
    root = _demo_root() / run_id
    fleet = _fleet(root)
    hosts = Hosts(fleet)
    code: int = Exit.FAILED
    try:
        output.talk(f"launching {run_id} on small (2 devices)")
        attempt = launch_run(hosts, fleet, "small", shipped(CONFIG), run_id, (), say=output.talk)
        output.value({"event": "launched", "run": run_id, "target": "small", "attempt": attempt.number})
        _wait_for_step(Watch(fleet, hosts, interval=0.5), run_id, MOVE_AFTER, output)
        flags = parser().parse_args(
            ["--migrate", run_id, "--to", "large", "--healthy-steps", str(HEALTHY_STEPS)]
            + (["--json"] if output.as_json else [])
        )
        code = headless.migrate(fleet, flags, (), output)
        return code
    finally:
        with contextlib.suppress(HostError):
            for name, number in _living(fleet, hosts, run_id):
                _stop(hosts, name, run_id, number, output)
        hosts.close()
        if code == Exit.DONE:
            shutil.rmtree(root, ignore_errors=True)
        else:
            output.talk(f"midstream: what the demo left is in {root}")


def _wait_for_step(watch, run_id: str, step: int, output: Output) -> None:
    from midstream_engine import records

    seen = []

    def there(snapshot) -> bool:
        for run in snapshot.copies(run_id):
            if run.status is None:
                continue
            if run.state in (records.FAILED, "lost"):
                last = next((line for line in reversed(run.log) if line.strip()), "")
                raise MidstreamError(
                    f"the demo's run ended ({run.state}): {run.status.message or last}",
                    f"its log is under {run.host}'s root",
                )
            if run.status.step >= step:
                seen.append(run)
                return True
        return False

    watch.start()
    try:
        watch.wait_for(there, timeout=START_TIMEOUT)
    finally:
        watch.stop()
    if not seen:
        raise MidstreamError(f"the demo's run did not reach step {step} within {START_TIMEOUT:.0f} s", "see its log")
    output.talk(f"{run_id} is at step {seen[-1].status.step}, loss {seen[-1].loss:.3f}; moving it to large (4 devices)")
