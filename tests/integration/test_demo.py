"""The processes of a demo end with it, before the next demo starts.

The engine is a stand-in.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from midstream.demo_cleanup import MARK
from midstream.demo_directory import DemoDirectory, claim, claim_at, default_root
from midstream_core import records
from support.engines.stand_in_engine import write_stand_in
from support.paths import TESTS

pytestmark = pytest.mark.drawn

# A demo with an engine, its supervisor, and a process that locks a migration; it runs until its file END exists.
DEMO = f"""
import subprocess, sys, time
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, {str(TESTS)!r})
from midstream.run_demo import _demo_fleet
from midstream.demo_directory import claim
from midstream.launch.attempt_monitor import wait_ranks
from midstream.install.bundle import build_bundle, install_engine
from midstream.install.environment import Environment
from midstream.launch.start_attempt import Launch, Prepared, start_attempt
from midstream.migrate.journal import migration_directory
from midstream.output import Output
from midstream_core import records
from support.migrations.sample_plan import PLAN, changed

LOCK = (
    "import time; from midstream.migrate.journal.migration_directory import MigrationDirectory\\n"
    "with MigrationDirectory('m').locked():\\n    print('locked', flush=True)\\n    time.sleep(600)"
)
with _demo_fleet(claim(print), Output(False), continued=True) as (fleet, hosts):
    small = hosts.get("small")
    engine = install_engine(small, build_bundle(Path(sys.argv[1])))
    prepared = Prepared(engine, Environment(sys.executable, ""))
    attempt = start_attempt(small, fleet.hosts["small"], Launch("demo", "small", config_text="a: 1"), prepared)
    wait_ranks(hosts, attempt.ranks, "demo", 1, {{records.TRAINING}}, 60)
    plan = changed(PLAN, run_id="demo", source="small", target="large", target_host="large", fleet_file=fleet.path)
    migration_directory.create(plan, fleet.text)
    locking = subprocess.Popen([sys.executable, "-c", LOCK], stdout=subprocess.PIPE, start_new_session=True)
    locking.stdout.readline()
    print("ready", flush=True)
    while not Path(sys.argv[2]).exists():
        time.sleep(0.05)
"""


def marked_processes(root: Path) -> dict[int, str]:
    """Return pid and command line of each process with the demo's mark."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={root}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Start a demo; returns once all its processes run."""
    package, started = write_stand_in(tmp_path / "package"), []

    def start() -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", DEMO, str(package), str(tmp_path / "end")]
        child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        started.append(child)
        assert child.stdout is not None
        output = []
        while line := child.stdout.readline():
            output.append(line)
            if line == "ready\n":
                return child
        raise AssertionError("".join(output))

    yield start
    for child in started:
        child.kill()
        child.communicate()
    for root in (default_root(), default_root().with_name("demo-2")):
        for pid in marked_processes(root):
            os.kill(pid, signal.SIGKILL)


def status() -> records.Status:
    return records.Status.read(records.RunPaths(str(default_root() / "small"), "demo").attempt(1).status())


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda how: how.name)
def test_killed_demo_ends_its_processes_before_next_demo(
    how: signal.Signals, demo: Callable[[], subprocess.Popen[str]]
) -> None:
    child, root = demo(), default_root()
    running = marked_processes(root)
    for word in ("midstream_host.supervise", "midstream_engine.train", "locked()", "midstream.demo_cleanup"):
        assert any(word in line for line in running.values()), (word, running)
    engine = status().pid
    os.kill(engine, signal.SIGSTOP)  # so that it has not exited when the next demo starts
    child.send_signal(how)
    child.wait(60)
    waiting, messages, claimed = threading.Event(), list[str](), list[DemoDirectory]()

    def say(line: str) -> None:
        messages.append(line)
        waiting.set()

    following = threading.Thread(target=lambda: claimed.append(claim(say)))
    following.start()
    assert waiting.wait(60)
    assert messages == [f"waiting for the last demo in {root} to end"]
    assert not claimed
    os.kill(engine, signal.SIGCONT)
    following.join(120)
    assert [each.root for each in claimed] == [root]
    left = {pid: line for pid, line in marked_processes(root).items() if pid in running}
    assert not left
    assert status().state == records.STOPPED, "it saved"
    claimed[0].release()


def test_finished_demo_leaves_no_processes(demo: Callable[[], subprocess.Popen[str]], tmp_path: Path) -> None:
    child = demo()
    (tmp_path / "end").touch()
    output, _ = child.communicate(timeout=120)
    assert child.returncode == 0, output
    assert "stopping the demo's run on small; it saves" in output
    assert "ending the migration of demo" in output
    assert not marked_processes(default_root())


def test_second_demo_uses_its_own_directory(demo: Callable[[], subprocess.Popen[str]]) -> None:
    demo()
    messages: list[str] = []
    second = claim(messages.append)
    assert second.root == default_root().with_name("demo-2")
    assert messages == [f"another demo is open in {default_root()}; this one uses its own directory"]
    assert status().state == records.TRAINING
    second.release()
    claim_at(second.root).release()
