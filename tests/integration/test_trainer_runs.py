"""Runs of another trainer, a script without torch: launched, watched, migrated, rolled back, continued."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from midstream_engine import records
from simulators.sshd import Lab
from support.command_line import Ended, Run, midstream, refused, start_midstream
from support.launched_processes import kill_launched
from support.trainers.script_trainer import write_node_script, write_script
from support.wheels import PACKAGE, uv_works, write_wheel

STEPS = 20000  # more than a test trains


def undisturbed(file: Path, out: Path, steps: int) -> list[float]:
    """Return the losses of the first steps of a run of the same script that nothing interrupts."""
    out.mkdir()
    argv = [sys.executable, "train.py", "--out", out, "--steps", STEPS, "--every", STEPS, "--pause", 0]
    subprocess.run([*map(str, argv), "--stop-at", str(steps)], cwd=file.parent, check=True, timeout=60)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows]


def claims_of(ended: Ended) -> dict[str, dict[str, Any]]:
    return {claim["name"]: claim for claim in ended.result["certificate"]["claims"]}


def check_curve(run: Run, file: Path, out: Path) -> dict[int, dict[str, Any]]:
    """Assert that the run's curve is that of a run that nothing interrupts, without a gap; return its rows."""
    rows = run.spliced()
    assert sorted(rows) == list(range(len(rows)))
    assert [rows[step]["train/loss"] for step in sorted(rows)] == undisturbed(file, out, len(rows))
    return rows


def test_script_is_watched_migrated_cold_and_continued(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    here, there = lab.host("here"), lab.host("there")
    fleet = lab.fleet_file(here=here.config, there=there.config)
    file = write_script(tmp_path / "code", steps=STEPS, every=25)
    launched = midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r", "--json")
    assert launched.code == 0, launched.stderr
    source, target = runs(here.root, "r"), runs(there.root, "r")
    source.wait(lambda run: len(run.checkpoints()) > 1, "two checkpoints")

    # The fleet shows it like any other run.
    metrics = midstream("--fleet", fleet, "--metrics", "r", "--json")
    first = next(event for event in metrics.events if event.get("event") == "metrics" or "global_step" in event)
    assert {"train/loss", "optim/learning_rate"} <= first.keys(), first

    # What the target executes is agreed to first.
    refused(midstream("--fleet", fleet, "--migrate", "r", "--to", "there", "--mode", "cold"), 3, "there executes")
    moved = midstream(
        "--fleet", fleet, "--migrate", "r", "--to", "there", "--mode", "cold", "--yes", "--healthy-steps", "5", "--json"
    )
    assert moved.code == 0, moved.stderr
    found = {name: claim["verdict"] for name, claim in claims_of(moved).items()}
    assert {name: found[name] for name in ("state", "step", "learning rate", "environment")} == dict.fromkeys(
        ("state", "step", "learning rate", "environment"), "verified"
    )
    assert not source.running
    sealed = moved.result["certificate"]["step"]
    assert sealed % 25 == 0
    assert source.fence == target.fence
    restore = records.Restore.read(target.paths.attempt(2).restore)
    assert restore.root_digest == source.manifest(f"step-{sealed}-a001").root_digest

    # Killed, it continues from its newest checkpoint there.
    target.wait(lambda run: any(name.endswith("-a002") for name in run.checkpoints()), "a checkpoint of the target")
    target.kill()
    target.wait(lambda run: not run.running, "its end")
    again = midstream("--fleet", fleet, "--launch", file, "--on", "there", "--run-id", "r")
    assert again.code == 0, again.stderr
    stopped = midstream("--fleet", fleet, "--stop", "r", "--json")
    assert stopped.code == 0, stopped.stderr
    rows = check_curve(target, file, tmp_path / "straight")
    assert {row["attempt"] for row in rows.values()} == {1, 2, 3}
    assert max(rows) + 1 >= stopped.result["step"] > sealed


@pytest.mark.drawn
def test_script_is_rehearsed_migrated_warm_and_rolled_back(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    here, there = lab.host("here"), lab.host("there")
    fleet = lab.fleet_file(here=here.config, there=there.config)
    tap = "environment: {variables: {TAP: '1'}}"
    file = write_script(tmp_path / "code", steps=STEPS, every=25, saves=True, more=tap)
    launched = midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r")
    assert launched.code == 0, launched.stderr
    source, target = runs(here.root, "r"), runs(there.root, "r")
    source.wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    words = ("--fleet", fleet, "--migrate", "r", "--to", "there", "--yes", "--healthy-steps", str(STEPS))
    process = start_midstream(*words, "--json")
    target.wait(lambda run: run.running and len(run.rows()) > 3, "the target's steps")
    assert process.stdout is not None
    events: list[dict[str, Any]] = []
    for line in process.stdout:
        events.append(json.loads(line))
        if events[-1].get("event") == "phase" and (events[-1]["phase"], events[-1]["state"]) == ("certify", "done"):
            break
    notes = [event.get("message", "") for event in events if event.get("event") == "note"]
    assert any("rehearsal: replay overlap: verified" in note and "bit by bit" in note for note in notes), notes
    assert any(note.startswith("data: verified") for note in notes), notes
    migration = next(event["identity"]["migration"] for event in events if event.get("event") == "plan")
    back = midstream("--rollback", migration, "--yes", "--json")
    process.communicate(timeout=60)
    assert back.code == 0, back.stderr
    source.wait(lambda run: run.running and run.attempt > 2, "the source's next attempt")
    source.wait(lambda run: len(run.rows()) > 3, "its steps")
    assert not target.running
    assert source.fence.epoch == 3
    check_curve(source, file, tmp_path / "straight")


def test_running_trainer_is_described_adopted_and_advised(
    lab: Lab, runs: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = lab.host("here")
    fleet = lab.fleet_file(here=here.config)
    directory = tmp_path / "theirs"
    file = write_script(directory, steps=STEPS, every=25)
    text = file.read_text()
    file.unlink()
    (directory / "out").mkdir()
    argv = [sys.executable, "train.py", "--out", "out", "--steps", STEPS, "--every", 25, "--pause", 0.02]
    theirs = subprocess.Popen(list(map(str, argv)), cwd=directory)
    try:
        monkeypatch.chdir(tmp_path)
        written = midstream("--fleet", fleet, "--init-run", f"here:{directory}")
        assert written.code == 0, written.stderr
        found = Path("run.yaml").read_text()
        assert "trainer: script" in found
        assert "{python} train.py --out out --steps 20000" in found
        refused(midstream("--fleet", fleet, "--adopt", f"here:{directory}"), 2, "has no run.yaml", "--init-run")
        private = tmp_path / "private-key"  # of this machine: a run file of a host names none of its files
        private.write_text("PRIVATE KEY")
        for name in (str(private), f"../{private.name}"):
            file.write_text(f"{text}\nenvironment: {{lock: {name}}}\n")
            adopt = midstream("--fleet", fleet, "--adopt", f"here:{directory}", "--run-id", "r")
            refused(adopt, 2, "environment.lock", "is not below the directory of the run file")
        file.write_text(f"{text}\nenvironment: {{lock: missing.txt}}\n")
        adopt = midstream("--fleet", fleet, "--adopt", f"here:{directory}", "--run-id", "r")
        refused(adopt, 2, "environment.lock", "missing.txt")
        file.write_text(text)
        adopted = midstream("--fleet", fleet, "--adopt", f"here:{directory}", "--run-id", "r", "--json")
        assert adopted.code == 0, adopted.stderr
        run = runs(here.root, "r")
        run.wait(lambda run: bool(run.checkpoints()) and bool(run.rows()), "a checkpoint")
        assert run.rows()[0]["global_step"] == 0
        advice = midstream("--fleet", fleet, "--check", "r", "--json")
        states = {event["name"]: event["state"] for event in advice.of("check")}
        assert states["checkpoint"] == "pass", advice.stdout
        assert states["batches"] == "warn", "it has no tap"
        run.kill()
        run.wait(lambda run: not run.running, "the driver's end")
        assert theirs.poll() is None, "a trainer that a user has started outlives its driver"
        again = midstream("--fleet", fleet, "--adopt", f"here:{directory}", "--run-id", "r", "--json")
        assert again.code == 0, again.stderr
        run.wait(lambda run: run.attempt == 2 and bool(run.rows(2)), "rows of the second attempt")
        stopped = midstream("--fleet", fleet, "--stop", "r", "--json")
        assert stopped.code == 0, stopped.stderr
        assert theirs.wait(60) != 0
    finally:
        theirs.kill()
        theirs.wait()


def test_run_in_a_directory_of_the_user_can_be_migrated(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    """``files:`` beside ``directory:`` are taken from that directory of the host, at the launch."""
    here, there = lab.host("here"), lab.host("there")
    fleet = lab.fleet_file(here=here.config, there=there.config)
    directory = tmp_path / "theirs"
    file = write_script(directory, steps=STEPS, every=25, more=f"directory: {directory}")
    launched = midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r")
    assert launched.code == 0, launched.stderr
    runs(here.root, "r").wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    moved = midstream(
        "--fleet", fleet, "--migrate", "r", "--to", "there", "--mode", "cold", "--yes", "--healthy-steps", "5", "--json"
    )
    assert moved.code == 0, moved.stderr
    target = runs(there.root, "r")
    assert Path(target.paths.dir, "work", "train.py").read_bytes() == (directory / "train.py").read_bytes()


@pytest.mark.slow
def test_guard_migrates_a_script_that_was_killed(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    here, there = lab.host("here"), lab.host("there")
    fleet = lab.fleet_file(here=here.config, there=there.config)
    file = write_script(tmp_path / "code", steps=STEPS, every=25)
    assert midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r").code == 0
    source, target = runs(here.root, "r"), runs(there.root, "r")
    source.wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    words = ("--fleet", fleet, "--guard", "r", "--to", "there", "--tries", "1", "--json")
    refused(midstream(*words), 3, "there would execute", "--yes agrees to it")
    guard = start_midstream(*words, "--yes")
    try:
        assert guard.stdout is not None
        source.kill()
        target.wait(lambda run: run.running and len(run.rows()) > 3, "the run there", 100.0)
        kinds: list[str] = []
        for line in guard.stdout:
            kinds.append(json.loads(line)["kind"])
            if kinds[-1] == "finished":
                break
        stopped = midstream("--fleet", fleet, "--stop", "r")
        assert stopped.code == 0, stopped.stderr
        guard.wait(60.0)
    finally:
        guard.kill()
        guard.communicate()
    assert guard.returncode == 0
    assert kinds == ["lost", "migrating", "finished"]
    assert (target.fence.owner, target.fence.epoch) == ("there", 2)
    check_curve(target, file, tmp_path / "straight")


@pytest.mark.slow
def test_environment_of_requirements_is_built_on_each_host(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    lock = write_wheel(wheels)
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(wheels),
               "UV_OFFLINE": "1"}  # fmt: skip
    here, there = lab.host("here"), lab.host("there")
    hosts = {
        name: dataclasses.replace(server.config, python=None, env={**server.config.env, **offline})
        for name, server in (("here", here), ("there", there))
    }
    fleet = lab.fleet_file(**hosts)
    more = f"environment: {{lock: packages.txt, packages: [{PACKAGE}]}}"
    file = write_script(tmp_path / "code", steps=STEPS, every=25, more=more)
    (file.parent / "packages.txt").write_text(lock)
    script = file.parent / "train.py"
    script.write_text(f"import {PACKAGE}\nassert {PACKAGE}.VALUE == 42\n{script.read_text()}")
    launched = midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r")
    assert launched.code == 0, launched.stderr
    source, target = runs(here.root, "r"), runs(there.root, "r")
    source.wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    words = ("--fleet", fleet, "--migrate", "r", "--to", "there", "--yes", "--healthy-steps", "3", "--json")
    moved = midstream(*words)
    assert moved.code == 0, moved.stderr
    environment = claims_of(moved)["environment"]
    assert environment["verdict"] == "verified", environment
    for run in (source, target):
        status = run.status()
        assert status is not None
        assert status.versions[PACKAGE] == "1.0"
        assert list(Path(run.paths.root, "envs").glob(f"*/lib/python3*/site-packages/{PACKAGE}.py"))


@contextmanager
def index_of(wheels: Path, directory: Path) -> Iterator[str]:
    """Serve the wheel of ``wheels`` as an index of packages with hashes, on loopback; yield its address."""
    [wheel] = wheels.glob("*.whl")
    page = directory / PACKAGE.replace("_", "-")
    page.mkdir(parents=True)
    shutil.copy(wheel, page)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (page / "index.html").write_text(f'<a href="{wheel.name}#sha256={digest}">{wheel.name}</a>')

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(directory))) as index:
        thread = threading.Thread(target=index.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{index.server_port}"
        finally:
            index.shutdown()
            thread.join()


@pytest.mark.slow
@pytest.mark.skipif(not uv_works(), reason="no uv: pip install uv")
def test_environment_of_a_uv_lock_is_built_on_each_host(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    """A project is locked by uv here; each host installs exactly that, and the migration compares what they got."""
    wheels = tmp_path / "wheels"
    write_wheel(wheels)
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(wheels),
               "UV_OFFLINE": "1"}  # fmt: skip
    here, there = lab.host("here"), lab.host("there")
    hosts = {
        name: dataclasses.replace(server.config, python=None, env={**server.config.env, **offline})
        for name, server in (("here", here), ("there", there))
    }
    fleet = lab.fleet_file(**hosts)
    more = f"environment: {{lock: uv.lock, packages: [{PACKAGE}]}}"
    file = write_script(tmp_path / "code", steps=STEPS, every=25, more=more)
    (file.parent / "pyproject.toml").write_text(
        f'[project]\nname = "train"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["{PACKAGE}"]\n'
    )
    with index_of(wheels, tmp_path / "index") as address:
        words = ["uv", "lock", "--quiet", "--default-index", address]
        subprocess.run(words, cwd=file.parent, env={**os.environ, "UV_CACHE_DIR": str(tmp_path / "cache")}, check=True)
    script = file.parent / "train.py"
    script.write_text(f"import {PACKAGE}\nassert {PACKAGE}.VALUE == 42\n{script.read_text()}")
    launched = midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r")
    assert launched.code == 0, launched.stderr
    source, target = runs(here.root, "r"), runs(there.root, "r")
    source.wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    words = ("--fleet", fleet, "--migrate", "r", "--to", "there", "--yes", "--healthy-steps", "3", "--json")
    moved = midstream(*words)
    assert moved.code == 0, moved.stderr
    assert claims_of(moved)["environment"]["verdict"] == "verified"
    for run in (source, target):
        assert list(Path(run.paths.root, "envs").glob(f"*/lib/python3*/site-packages/{PACKAGE}.py"))


@pytest.mark.slow
def test_data_that_restart_are_found_before_the_stop(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    here, there = lab.host("here"), lab.host("there")
    fleet = lab.fleet_file(here=here.config, there=there.config)
    file = write_script(tmp_path / "code", steps=STEPS, every=25, flags="--forget-data")
    assert midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r").code == 0
    source = runs(here.root, "r")
    source.wait(lambda run: len(run.checkpoints()) > 1, "two checkpoints")
    words = ("--fleet", fleet, "--migrate", "r", "--to", "there", "--yes", "--healthy-steps", "3", "--json")
    moved = midstream(*words)
    assert moved.code == 1, moved.stderr
    assert "the order of the data, or the random state, begins again" in moved.stderr
    assert source.running
    assert source.attempt == 1
    assert source.fence.epoch == 1


@pytest.mark.slow
def test_data_that_restart_by_agreement_are_certified(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    here, there = lab.host("here"), lab.host("there")
    fleet = lab.fleet_file(here=here.config, there=there.config)
    more = "stored: {data_position: 'no'}"
    file = write_script(tmp_path / "code", steps=STEPS, every=25, flags="--forget-data", more=more)
    assert midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r").code == 0
    source, target = runs(here.root, "r"), runs(there.root, "r")
    source.wait(lambda run: len(run.checkpoints()) > 1, "two checkpoints")
    words = ("--fleet", fleet, "--migrate", "r", "--to", "there", "--healthy-steps", "3", "--json")
    moved = midstream(*words, "--yes")
    assert moved.code == 0, moved.stderr
    overlap = claims_of(moved)["replay overlap"]
    assert (overlap["verdict"], overlap["agreed"]) == ("failed", True)
    assert moved.result["certificate"]["valid"]
    assert target.running


@pytest.fixture
def pair(lab: Lab) -> Iterator[Path]:
    """Write a fleet file: hosts a and b, target ``pair``, have one root, as over NFS; ``one`` has its own."""
    root = str(lab.directory / "nfs")
    hosts = {name: dataclasses.replace(lab.host(name).config, root=root) for name in ("a", "b")}
    file = lab.fleet_file(one=lab.host("one").config, **hosts)
    file.write_text(f"{file.read_text()}targets: {{pair: {{type: hosts, hosts: [a, b], shared_root: {root}}}}}\n")
    yield file
    kill_launched(lab.directory)


def states(run: Run, attempt: int) -> list[str]:
    """Return the states of both nodes of an attempt."""
    return [records.Status.read(run.paths.attempt(attempt).status(node)).state for node in (0, 1)]


def test_script_is_migrated_to_a_group_of_hosts_and_back(
    lab: Lab, pair: Path, runs: Callable[..., Run], tmp_path: Path
) -> None:
    file = write_node_script(tmp_path / "code", steps=STEPS, every=25)
    launched = midstream("--fleet", pair, "--launch", file, "--on", "one", "--run-id", "r")
    assert launched.code == 0, launched.stderr
    alone, grouped = runs(lab.servers["one"].root, "r"), runs(str(lab.directory / "nfs"), "r")
    alone.wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    words = ("--fleet", pair, "--migrate", "r", "--yes", "--healthy-steps", "3", "--json", "--to")
    refused(midstream(*words, "pair", "--mode", "warm"), 2, "the rehearsal of script is on one host", "--mode cold")
    moved = midstream(*words, "pair", "--mode", "cold")
    assert moved.code == 0, moved.stderr
    assert claims_of(moved)["state"]["verdict"] == "verified"
    attempt = grouped.attempt
    assert states(grouped, attempt) == [records.TRAINING] * 2
    other = json.loads((Path(grouped.paths.dir) / "work" / "out" / "node-1.json").read_text())
    assert other["rank"] == "1"
    checkpoint = Path(other["argv"][other["argv"].index("--resume") + 1])
    assert checkpoint.name.startswith("ckpt-")
    assert checkpoint.is_relative_to(grouped.paths.dir)
    back = midstream(*words, "one", "--mode", "cold")
    assert back.code == 0, back.stderr
    assert states(grouped, attempt) == [records.STOPPED] * 2
    assert not os.path.exists(f"/proc/{other['pid']}")
    alone.kill()
    check_curve(alone, file, tmp_path / "straight")


def test_group_is_stopped_continued_and_ended_with_a_failed_node(
    lab: Lab, pair: Path, runs: Callable[..., Run], tmp_path: Path
) -> None:
    file = write_node_script(tmp_path / "code", steps=STEPS, every=25)
    grouped = runs(str(lab.directory / "nfs"), "r")
    other_node = Path(grouped.paths.dir) / "work" / "out" / "node-1.json"
    for number in (1, 2):
        launched = midstream("--fleet", pair, "--launch", file, "--on", "pair", "--run-id", "r")
        assert launched.code == 0, launched.stderr
        grouped.wait(
            lambda run, end=f"-a{number:03d}": (
                any(name.endswith(end) for name in run.checkpoints()) and other_node.exists()
            ),
            "a checkpoint and the other node",
        )
        if number == 1:
            stopped = midstream("--fleet", pair, "--stop", "r")
            assert stopped.code == 0, stopped.stderr
            assert states(grouped, 1) == [records.STOPPED] * 2
            assert not os.path.exists(f"/proc/{json.loads(other_node.read_text())['pid']}")
    os.kill(json.loads(other_node.read_text())["pid"], signal.SIGKILL)
    grouped.wait(lambda run: states(run, 2) == [records.FAILED] * 2, "the end of both")
    status = grouped.status()
    assert status is not None
    assert status.message.startswith("node 1 has failed: script ended by itself")
    rows = grouped.spliced()
    assert sorted(rows) == list(range(len(rows)))
    assert {row["attempt"] for row in rows.values()} == {1, 2}


def test_group_ends_with_the_driver_of_its_first_host(
    lab: Lab, pair: Path, runs: Callable[..., Run], tmp_path: Path
) -> None:
    file = write_node_script(tmp_path / "code", steps=STEPS, every=25)
    grouped = runs(str(lab.directory / "nfs"), "r")
    assert midstream("--fleet", pair, "--launch", file, "--on", "pair", "--run-id", "r").code == 0
    other_node = Path(grouped.paths.dir) / "work" / "out" / "node-1.json"
    grouped.wait(lambda run: other_node.exists(), "the other node")
    grouped.kill()
    grouped.wait(lambda run: states(run, 1)[1] == records.FAILED, "the end of the other node")
    found = records.Status.read(grouped.paths.attempt(1).status(1))
    assert found.message == "the driver of node 0 was killed"
    assert not os.path.exists(f"/proc/{json.loads(other_node.read_text())['pid']}")
