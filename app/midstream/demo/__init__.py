"""`midstream --demo`: two local targets and a real run between them, on this machine alone.

The run trains a small GPT-2 on the standard library sources of this Python. `small` has two virtual CPU devices,
`large` four; nothing is downloaded and nothing is written outside `$MIDSTREAM_STATE/demo` (a second demo beside an
open one: `demo-2`). Both machines are this process's own: what it started ends with it, also where it is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from midstream.bundled_files import shipped
from midstream.errors import Exit, MidstreamError
from midstream.output import Output, has_screen

if TYPE_CHECKING:
    from midstream.demo.directory import Place
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import Hosts

CONFIG = "configs/gpt2_nano.yaml"
RUN = "demo"
MOVE_AFTER = 12  # steps on `small` before the headless demo moves the run
HEALTHY_STEPS = 8
START_TIMEOUT = 300.0
SIGNALLED = 128  # exit codes from here on: a signal ended the screen

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
    from midstream.fleet.fleet_file import load_fleet

    root.mkdir(parents=True, exist_ok=True)
    file = root / "fleet.yaml"
    file.write_text(FLEET.format(root=root))
    return load_fleet(file)


# -------------------------------------------------------------------------------------------------- with a screen


def _screen(options: argparse.Namespace, output: Output) -> int:
    if not has_screen():
        raise MidstreamError(
            "the demo's screen needs a terminal", "midstream --demo --headless does the same without one", Exit.USAGE
        )
    from midstream.demo.directory import take
    from midstream.tui.app import run_tui

    with _kept(take(output.talk), output) as (fleet, hosts):
        _ensure_running(fleet, hosts, output)
        ended = run_tui(fleet, hosts, readonly=options.readonly, ascii_only=options.ascii, start_run=RUN, demo=True)
        if ended.code < SIGNALLED:
            _end_moves(fleet, ended.moves, output)
        return ended.code


@contextlib.contextmanager
def _kept(place: Place, output: Output) -> Iterator[tuple[Fleet, Hosts]]:
    """The demo's fleet; whatever happens, nothing that was started there runs afterwards."""
    from midstream.demo.cleanup_process import Keeper, end_everything
    from midstream.hosts.host_pool import Hosts

    def say(line: str) -> None:
        with contextlib.suppress(OSError):  # the terminal may be gone
            output.talk(line)

    fleet = _fleet(place.root)
    keeper = Keeper(place)
    hosts = Hosts(fleet)
    try:
        yield fleet, hosts
    finally:
        place.ending()
        end_everything(fleet, hosts, place.root, say, {keeper.pid})
        hosts.close()
        keeper.dismiss()
        place.release()


def _end_moves(fleet: Fleet, chosen: str, output: Output) -> None:
    """See the moves that are under way to their end, as was chosen; where nothing was, they finish."""
    from midstream.headless import follow
    from midstream.migrate import model
    from midstream.migrate.execution import migration_process
    from midstream.migrate.execution.migration_directory import MigrationDirectory, list_migrations
    from midstream.tui.screens.dialogs.quit import ROLL_BACK

    for view in list_migrations(fleet):
        if view.state != model.RUNNING:
            continue
        seen = MigrationDirectory(view.migration).journal_size()
        try:
            if chosen == ROLL_BACK:
                migration_process.rollback(view.migration)
            output.talk(f"the demo ends after the move of {view.plan.run_id}; ctrl-c ends both at once")
            follow(view.migration, output, seen, on_interrupt="the next midstream --demo continues the move")
        except MidstreamError as error:
            output.talk(f"midstream: {error}")


def _continues(fleet: Fleet, output: Output) -> bool:
    """Whether a move that the last demo did not see to its end is under way; it is continued."""
    from midstream.migrate.execution import migration_process
    from midstream.migrate.execution.migration_directory import list_migrations

    begun = [view for view in list_migrations(fleet) if view.open and view.plan.run_id == RUN]
    for view in begun:
        output.talk(f"continuing the move of {RUN} from {view.plan.source} to {view.plan.target}")
        try:
            migration_process.continue_(view.migration)
            return True
        except MidstreamError as error:
            output.talk(f"midstream: {error}")
    return False


def _ensure_running(fleet: Fleet, hosts: Hosts, output: Output) -> None:
    """Where the run is already known, its newest copy goes on; a finished one makes place for a new one. A move that
    was interrupted is continued, and starts the run by itself."""
    from midstream.demo.cleanup_process import living
    from midstream.launch.launch_run import launch_run
    from midstream_engine import records

    if _continues(fleet, output) or any(True for _ in living(fleet, hosts)):
        return
    place, epoch = "small", 0
    for name in fleet.hosts:
        host = hosts.get(name)
        if RUN not in host.call("runs.run_state.list_runs", root=host.root):
            continue
        described = host.call("runs.run_state.describe", root=host.root, run_id=RUN)
        status, fence = described["status"], described["fence"]
        if status and status["state"] == records.FINISHED:
            for each in fleet.hosts:
                shutil.rmtree(Path(hosts.get(each).root) / "runs", ignore_errors=True)
            place, epoch = "small", 0
            break
        if fence and fence["epoch"] > epoch:
            place, epoch = fence["owner"], fence["epoch"]
    output.talk(f"starting a small GPT-2 on {place} ({shipped(CONFIG)})")
    launch_run(hosts, fleet, place, shipped(CONFIG), RUN, (), say=output.talk)


# ----------------------------------------------------------------------------------------------- without a screen


def _headless(output: Output) -> int:
    """Launch on `small`, migrate to `large` at a step above 0, certify, stop. Exit 0 when the certificate is valid."""
    from midstream import headless
    from midstream.demo.directory import base, take_at
    from midstream.flags import parser
    from midstream.launch.launch_run import launch_run
    from midstream.watch.watcher import Watch

    run_id = f"demo-{secrets.token_hex(3)}"
    root = base() / run_id
    code: int = Exit.FAILED
    try:
        with _kept(take_at(root), output) as (fleet, hosts):
            output.talk(f"launching {run_id} on small (2 devices)")
            attempt = launch_run(hosts, fleet, "small", shipped(CONFIG), run_id, (), say=output.talk)
            output.value({"event": "launched", "run": run_id, "target": "small", "attempt": attempt.number})
            _wait_for_step(Watch(fleet, hosts, interval=0.5), run_id, MOVE_AFTER, output)
            flags = parser().parse_args(
                ["--migrate", run_id, "--to", "large", "--healthy-steps", str(HEALTHY_STEPS)]
                + (["--json"] if output.as_json else [])
            )
            code = headless.migrate(fleet, flags, (), output, on_interrupt="the demo ends, and the move with it")
            return code
    finally:
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
