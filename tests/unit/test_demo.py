"""A demo's processes end with it, whatever ends it, and the next demo begins after that. The engine is a stand-in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from midstream.demo import directory
from midstream.demo.cleanup_process import MARK
from midstream_engine import records
from support.stand_in_engine import write_stand_in

TESTS = Path(__file__).parents[1]
# A demo with an engine, its supervisor, and a process that holds a migration; it waits for its end.
DEMO = f"""
import subprocess, sys, time
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, {str(TESTS)!r})
from midstream.demo import _kept
from midstream.demo.directory import take
from midstream.launch.bundle import build_bundle
from midstream.launch.environment import Environment
from midstream.launch.start_attempt import Launch, Prepared, install_engine, start_attempt, wait_state
from midstream.migrate.execution import migration_directory
from midstream.output import Output
from midstream_engine import records
from unit.sample_plan import PLAN

HOLD = (
    "import time; from midstream.migrate.execution.migration_directory import MigrationDirectory\\n"
    "with MigrationDirectory('m').locked():\\n    print('held', flush=True)\\n    time.sleep(600)"
)
with _kept(take(print), Output(False)) as (fleet, hosts):
    small = hosts.get("small")
    engine = install_engine(small, build_bundle(Path(sys.argv[1])))
    prepared = Prepared(engine, Environment(sys.executable, ""))
    start_attempt(small, fleet.hosts["small"], Launch("demo", "small", config_text="a: 1"), prepared)
    wait_state(small, "demo", 1, frozenset({{records.TRAINING}}), 60)
    plan = replace(PLAN, run_id="demo", source="small", target="large", target_host="large", fleet_file=fleet.path)
    migration_directory.create(plan, fleet.text)
    holder = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, start_new_session=True)
    holder.stdout.readline()
    print("ready", flush=True)
    while not Path(sys.argv[2]).exists():
        time.sleep(0.05)
"""


def marked(root: Path) -> dict[int, str]:
    """pid -> command line of all that has the demo's mark."""
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
    """Starts a demo, and returns once all of it runs."""
    package, started = write_stand_in(tmp_path / "package"), []

    def start() -> subprocess.Popen[str]:
        words = [sys.executable, "-c", DEMO, str(package), str(tmp_path / "end")]
        child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        started.append(child)
        assert child.stdout is not None
        said = []
        while line := child.stdout.readline():
            said.append(line)
            if line == "ready\n":
                return child
        raise AssertionError("".join(said))

    yield start
    for child in started:
        child.kill()
        child.communicate()
    for root in (directory.base(), directory.base().with_name("demo-2")):
        for pid in marked(root):
            os.kill(pid, signal.SIGKILL)


def status() -> records.Status:
    return records.Status.read(records.RunPaths(str(directory.base() / "small"), "demo").attempt(1).status())


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda how: how.name)
def test_a_killed_demo_ends_with_all_that_it_started_before_the_next_one_begins(
    how: signal.Signals, demo: Callable[[], subprocess.Popen[str]]
) -> None:
    child, root = demo(), directory.base()
    running = marked(root)
    for word in ("midstream_engine.supervise", "midstream_engine.train", "locked()", "midstream.demo.cleanup_process"):
        assert any(word in line for line in running.values()), (word, running)
    engine = status().pid
    os.kill(engine, signal.SIGSTOP)  # so that its end is not over before the next demo is there
    child.send_signal(how)
    child.wait(60)
    waits, said, taken = threading.Event(), list[str](), list[directory.Place]()

    def say(line: str) -> None:
        said.append(line)
        waits.set()

    following = threading.Thread(target=lambda: taken.append(directory.take(say)))
    following.start()
    assert waits.wait(60)
    assert said == [f"the last demo in {root} is still ending; waiting for it"]
    assert not taken
    os.kill(engine, signal.SIGCONT)
    following.join(120)
    assert [each.root for each in taken] == [root]
    left = {pid: line for pid, line in marked(root).items() if pid in running}
    assert not left
    assert status().state == records.STOPPED, "it saved"
    taken[0].release()


def test_a_demo_that_ends_by_itself_leaves_nothing_running(
    demo: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    child = demo()
    (tmp_path / "end").touch()
    said, _ = child.communicate(timeout=120)
    assert child.returncode == 0, said
    assert "stopping the demo's run on small; it saves" in said
    assert "ending the move of demo" in said
    assert not marked(directory.base())


def test_a_second_demo_beside_an_open_one_has_a_directory_of_its_own(demo: Callable[[], subprocess.Popen[str]]) -> None:
    demo()
    said: list[str] = []
    second = directory.take(said.append)
    assert second.root == directory.base().with_name("demo-2")
    assert said == [f"another demo is open in {directory.base()}; this one takes a directory of its own"]
    assert status().state == records.TRAINING
    second.release()
    directory.take_at(second.root).release()
