"""A demo of two local targets and a real run between them (`midstream --demo`).

The run trains a small GPT-2 on the standard library sources of this Python, on this machine alone. `small` has two
virtual CPU devices, `large` four. Nothing is downloaded, and nothing is written outside `$MIDSTREAM_STATE/demo` (a
second demo beside an open one uses `demo-2`). Processes of the demo end with it, also if it is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from midstream.bundled_files import engine_packages_hint, shipped
from midstream.errors import Exit, MidstreamError
from midstream.json_events.run_events import LaunchedEvent
from midstream.output import Output, missing_screen
from midstream_host.runs import run_state

if TYPE_CHECKING:
    from midstream.demo_directory import DemoDirectory
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import HostPool
    from midstream.watch.snapshot import Snapshot
    from midstream.watch.watcher import Watcher

CONFIG = "configs/gpt2_nano.yaml"
RUN = "demo"
MIGRATE_AFTER = 12  # steps on `small` before the headless demo migrates the run
HEALTHY_STEPS = 8
START_TIMEOUT = 300.0  # seconds
SIGNALLED = 128  # exit codes from here on: a signal ended the screen

FLEET = """\
# The embedded fleet of `midstream --demo`.
hosts:
  small: {{type: local, devices: 2, root: "{root}/small"}}
  large: {{type: local, devices: 4, root: "{root}/large"}}
"""


def run_demo(options: argparse.Namespace, output: Output) -> int:
    """Run the demo with a screen, or without one (`--headless`)."""
    if sys.platform != "linux":
        raise MidstreamError("the demo needs Linux: its runs train on this machine", "see the README", Exit.USAGE)
    _require_engine()
    if options.headless:
        return _headless(output, verbose=options.verbose)
    return _screen(options, output)


def _require_engine() -> None:
    import importlib.util

    if importlib.util.find_spec("jax") is None or importlib.util.find_spec("haliax") is None:
        raise MidstreamError(
            "the demo trains on this machine, and the engine's packages are not installed",
            engine_packages_hint(),
            Exit.USAGE,
        )


def _fleet(root: Path) -> Fleet:
    from midstream.fleet.fleet_file import load_fleet

    root.mkdir(parents=True, exist_ok=True)
    file = root / "fleet.yaml"
    file.write_text(FLEET.format(root=root))
    return load_fleet(file)


# -------------------------------------------------------------------------------------------------- with a screen


def _screen(options: argparse.Namespace, output: Output) -> int:
    if missing := missing_screen():
        raise MidstreamError(
            f"the demo's screen needs {missing}", "midstream --demo --headless runs without one", Exit.USAGE
        )
    from midstream.demo_directory import claim
    from midstream.tui.fleet_session import UnopenedFleet
    from midstream.tui.run_tui import run_tui

    with _demo_fleet(claim(output.message), output, continued=True) as (fleet, hosts):
        _ensure_running(hosts, output, verbose=options.verbose)
        display = {"readonly": options.readonly, "ascii_only": options.ascii}
        ended = run_tui(UnopenedFleet(fleet.path, lambda: hosts), **display, start_run=RUN, demo=True)
        if ended.code < SIGNALLED:
            _end_migrations(fleet, ended.quit_choice, output)
        return ended.code


@contextlib.contextmanager
def _demo_fleet(directory: DemoDirectory, output: Output, *, continued: bool) -> Iterator[tuple[Fleet, HostPool]]:
    """Yield the demo's fleet. On exit every process started there has ended."""
    from midstream.demo_cleanup import CleanupProcess, end_processes
    from midstream.hosts.host_pool import HostPool

    def report(line: str) -> None:
        with contextlib.suppress(OSError):  # the terminal may be closed
            output.message(line)

    fleet = _fleet(directory.root)
    cleanup = CleanupProcess(directory)
    hosts = HostPool(fleet)
    try:
        yield fleet, hosts
    finally:
        directory.ending()
        end_processes(hosts, directory.root, report, {cleanup.pid}, continued=continued)
        hosts.close()
        cleanup.dismiss()
        directory.release()


def _end_migrations(fleet: Fleet, chosen: str, output: Output) -> None:
    """Finish running migrations, or roll them back if ``chosen`` says so."""
    from midstream.headless.migrate_run import follow
    from midstream.migrate import migration_process
    from midstream.migrate.journal import migration_state
    from midstream.migrate.journal.migration_directory import MigrationDirectory, list_migrations
    from midstream.tui.screens.dialogs.quit import ROLL_BACK

    for view in list_migrations(fleet):
        if view.state != migration_state.RUNNING:
            continue
        directory = MigrationDirectory(view.migration)
        seen = directory.journal_size()
        try:
            if chosen == ROLL_BACK:
                migration_process.rollback(view.migration)
            output.message(f"the demo ends after the migration of {view.plan.run_id}; ctrl-c ends both now")
            follow(view.migration, output, seen, on_interrupt="the next midstream --demo continues the migration")
            if chosen == ROLL_BACK:
                migration_process.refuse_finished(directory)  # completed before its process read the request
        except MidstreamError as error:
            output.message(f"midstream: {error}")


def _continue_migration(fleet: Fleet, output: Output) -> bool:
    """Continue the last demo's migration. Return True if there was one."""
    from midstream.migrate import migration_process
    from midstream.migrate.journal.migration_directory import list_migrations

    begun = [view for view in list_migrations(fleet) if view.open and view.plan.run_id == RUN]
    for view in begun:
        output.message(f"continuing the migration of {RUN} from {view.plan.source} to {view.plan.target}")
        try:
            migration_process.continue_(view.migration)
            return True
        except MidstreamError as error:
            output.message(f"midstream: {error}")
    return False


def _ensure_running(hosts: HostPool, output: Output, *, verbose: bool) -> None:
    """Start the run, or continue its newest copy; a finished run is deleted first.

    An interrupted migration is continued instead and starts the run.
    """
    from midstream.demo_cleanup import running_engines
    from midstream.launch.launch_request import LaunchRequest
    from midstream.launch.launch_run import launch_run
    from midstream.launch.progress_line import reporter
    from midstream_core import records

    fleet = hosts.fleet
    if _continue_migration(fleet, output) or any(True for _ in running_engines(hosts)):
        return
    target, epoch = "small", 0
    for name in fleet.hosts:
        host = hosts.get(name)
        if RUN not in host.call(run_state.list_runs)(root=host.root):
            continue
        described = host.call(run_state.describe)(root=host.root, run_id=RUN)
        status, fence = described.status, described.fence
        if status and status.state == records.FINISHED:
            for host_name in fleet.hosts:
                shutil.rmtree(Path(hosts.get(host_name).root) / "runs", ignore_errors=True)
            target, epoch = "small", 0
            break
        if fence and fence.epoch > epoch:
            target, epoch = fence.owner, fence.epoch
    output.message(f"starting a small GPT-2 on {target} ({shipped(CONFIG)})")
    launch_run(hosts, LaunchRequest(target, str(shipped(CONFIG)), RUN), reporter(output, verbose=verbose))


# ----------------------------------------------------------------------------------------------- without a screen


def _headless(output: Output, *, verbose: bool) -> int:
    """Launch on `small`, migrate to `large`, certify, stop.

    Returns 0 if the certificate is valid.
    """
    from midstream.demo_directory import claim_at, default_root
    from midstream.flags import parser
    from midstream.headless.migrate_run import migrate
    from midstream.launch.launch_request import LaunchRequest
    from midstream.launch.launch_run import launch_run
    from midstream.launch.progress_line import reporter
    from midstream.watch.watcher import Watcher

    run_id = f"demo-{secrets.token_hex(3)}"
    root = default_root() / run_id
    code: int = Exit.FAILED
    try:
        with _demo_fleet(claim_at(root), output, continued=False) as (fleet, hosts):
            output.message(f"launching {run_id} on small (2 devices)")
            attempt = launch_run(hosts, LaunchRequest("small", CONFIG, run_id), reporter(output, verbose=verbose))
            output.event(LaunchedEvent(run=run_id, target="small", attempt=attempt.number))
            _wait_for_step(Watcher(fleet, hosts, interval=0.5), run_id, MIGRATE_AFTER, output)
            flags = parser().parse_args(
                ["--migrate", run_id, "--to", "large", "--healthy-steps", str(HEALTHY_STEPS)]
                + (["--json"] if output.as_json else [])
            )
            code = migrate(fleet, flags, (), output, on_interrupt="the demo ends, and the migration with it")
            return code
    finally:
        if code == Exit.DONE:
            shutil.rmtree(root, ignore_errors=True)
        else:
            output.message(f"midstream: files of the demo are in {root}")


def _wait_for_step(watch: Watcher, run_id: str, step: int, output: Output) -> None:
    from midstream.listing import run_facts
    from midstream_core import records

    reached_steps: list[tuple[int, float | None]] = []

    def reached(snapshot: Snapshot) -> bool:
        for run in snapshot.copies(run_id):
            if run.status is None:
                continue
            if run.state in (records.FAILED, "lost"):
                last = next((line for line in reversed(run.log) if line.strip()), "")
                raise MidstreamError(
                    f"the demo's run ended ({run.state}): {run.status.message or last}",
                    f"see its log under {run.host}'s root",
                )
            if run.status.step >= step:
                reached_steps.append((run.status.step, run_facts.loss(run)))
                return True
        return False

    watch.start()
    try:
        watch.wait_for(reached, timeout=START_TIMEOUT)
    finally:
        watch.stop()
    if not reached_steps:
        raise MidstreamError(f"the demo's run did not reach step {step} within {START_TIMEOUT:.0f} s", "see its log")
    reached_step, loss = reached_steps[-1]
    at = f"{run_id} is at step {reached_step}" + (f", loss {loss:.3f}" if loss is not None else "")
    output.message(f"{at}; migrating it to large (4 devices)")
