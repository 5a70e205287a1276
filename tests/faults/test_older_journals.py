"""Migrations continued by a state directory that is older than they are, or beside another operator's."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from midstream.migrate.journal.migration_directory import MigrationDirectory, migration_ids
from midstream_core import records
from simulators.sshd import Lab
from support.command_line import Run, ended, midstream, start_midstream
from support.migrations.real_migrations import assert_one_lineage, launched, newest_migration, two_hosts

Pause = Callable[[str, "subprocess.Popen[str]"], tuple[MigrationDirectory, int]]


@pytest.fixture
def pause() -> Iterator[Pause]:
    """Function that stops a migration's process with SIGSTOP once its journal has a word.

    It returns the migration's directory, and the process's pid.
    """
    stopped: list[tuple[MigrationDirectory, int]] = []

    def stop(word: str, follower: subprocess.Popen[str]) -> tuple[MigrationDirectory, int]:
        deadline = time.monotonic() + 300.0
        while time.monotonic() < deadline:
            if migration_ids():
                directory = newest_migration()
                if directory.is_locked() and word in directory.journal_file.read_text():
                    stopped.append((directory, int((directory.path / ".lock").read_text())))
                    os.kill(stopped[-1][1], signal.SIGSTOP)
                    return stopped[-1]
            if follower.poll() is not None:
                pytest.fail(f"it ended before {word!r}: {follower.communicate()}")
            time.sleep(0.002)
        pytest.fail(f"{word!r} was not journaled within 300 s")

    yield stop
    for directory, pid in stopped:
        if directory.is_locked():
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("word", ['"prepare"', '"cutover"'])
def test_older_journal_gives_up_no_step(
    word: str, lab: Lab, runs: Callable[..., Run], pause: Pause, tmp_path: Path
) -> None:
    """The state directory is restored from a backup that was made before the source stopped."""
    fleet, source, target = two_hosts(lab, runs, 2, 2)
    launched(fleet, source, "one")
    follower = start_midstream("--fleet", fleet, "--migrate", "r", "--to", "two", "--healthy-steps", "8")
    directory, pid = pause(word, follower)
    shutil.copytree(directory.path, tmp_path / "backup")
    os.kill(pid, signal.SIGCONT)
    assert ended(follower, 300) == 0
    attempt = target.attempt
    shutil.rmtree(directory.path)
    shutil.copytree(tmp_path / "backup", directory.path)

    back = midstream("--rollback", directory.migration)
    assert back.code == 3, (back.stdout, back.stderr)
    assert "a rollback discards " in back.stderr
    assert "--yes" in back.stderr
    assert target.running

    again = midstream("--continue", directory.migration, "--json")
    assert again.code == 0, again.stderr
    assert again.result["outcome"] == "completed"
    assert "the journal is older than the migration" in " ".join(event["message"] for event in again.of("note"))
    assert (target.attempt, target.running, source.running) == (attempt, True, False)
    assert source.handed_over == target.handed_over
    assert target.fence.epoch == 2
    assert_one_lineage(target)


@pytest.mark.slow
def test_later_migration_says_where_the_run_is(
    lab: Lab, runs: Callable[..., Run], pause: Pause, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another operator's migration takes the run while the first one is suspended shortly before its seal."""
    hosts = {name: lab.local(name, devices=2) for name in ("one", "two", "three")}
    fleet = lab.fleet_file(**hosts)
    source, third = runs(hosts["one"].root, "r"), runs(hosts["three"].root, "r")
    runs(hosts["two"].root, "r")
    launched(fleet, source, "one")
    follower = start_midstream("--fleet", fleet, "--migrate", "r", "--to", "two")
    directory, pid = pause('"prepare"', follower)

    same = midstream("--fleet", fleet, "--migrate", "r", "--to", "three")
    assert same.code == 3, (same.stdout, same.stderr)
    assert f"migration {directory.migration} of r to two is running" in same.stderr
    assert f"midstream --rollback {directory.migration}" in same.stderr

    with monkeypatch.context() as other:
        other.setenv("MIDSTREAM_STATE", str(tmp_path / "other operator"))
        moved = midstream("--fleet", fleet, "--migrate", "r", "--to", "three", "--healthy-steps", "4")
    assert moved.code == 0, moved.stderr

    os.kill(pid, signal.SIGCONT)
    out, errors = follower.communicate(timeout=300)
    assert follower.returncode == 1, errors
    assert directory.view().state == "moved on"
    assert "r: moved on: another migration has taken r from one to three (ownership 2) (midstream --status" in out
    assert "--launch" not in out
    assert third.running
    assert not source.running
    assert_one_lineage(third)


@pytest.mark.slow
def test_stop_names_the_open_migration(lab: Lab, runs: Callable[..., Run], pause: Pause) -> None:
    fleet, source, target = two_hosts(lab, runs, 2, 2)
    launched(fleet, source, "one")
    follower = start_midstream("--fleet", fleet, "--migrate", "r", "--to", "two", "--healthy-steps", "4")
    directory, pid = pause('"prepare"', follower)
    stopped = midstream("--fleet", fleet, "--stop", "r")
    assert stopped.code == 0, stopped.stderr
    said = f"migration {directory.migration} of r from one to two is running: after this stop it starts r on two"
    assert f"{said} (midstream --rollback {directory.migration} ends the migration)" in stopped.stderr

    back = start_midstream("--rollback", directory.migration)
    os.kill(pid, signal.SIGCONT)
    assert ended(back, 200) == 6, "it does not start what the user has stopped"
    assert ended(follower, 60) == 6
    assert not source.running
    assert not target.running


def _earlier(value: Any) -> Any:
    """Return a JSON value without the fields that the earlier build does not write."""
    if isinstance(value, list):
        return [_earlier(each) for each in value]
    new = ("start", "starts", "start_allowed", "numbered")
    return {name: _earlier(value[name]) for name in value if name not in new} if isinstance(value, dict) else value


def as_of_an_earlier_build(directory: MigrationDirectory, *copies: Run) -> None:
    """Take from the records what a build without signed records and start numbers does not write."""
    shutil.rmtree(Path(os.environ["MIDSTREAM_STATE"], "ownership"))
    lines = directory.journal_file.read_text().splitlines()
    directory.journal_file.write_text("".join(json.dumps(_earlier(json.loads(line))) + "\n" for line in lines))
    for copy in copies:
        Path(copy.paths.ownership).unlink(missing_ok=True)
        manifests = (str(path) for path in Path(copy.paths.checkpoints).glob("step-*/manifest.json"))
        for path in (copy.paths.fence, copy.paths.migration_lock, *manifests):
            if os.path.exists(path):
                records.write_json(path, _earlier(records.read_json(path)))


@pytest.mark.drawn
@pytest.mark.parametrize("word", ['"prepare"', '"cutover"', '"sealed"'])
def test_migration_of_an_earlier_build_goes_on(word: str, lab: Lab, runs: Callable[..., Run], pause: Pause) -> None:
    """Midstream is updated while a migration is interrupted: its run gets its first signed record."""
    fleet, source, target = two_hosts(lab, runs, 2, 2)
    launched(fleet, source, "one")
    follower = start_midstream("--fleet", fleet, "--migrate", "r", "--to", "two", "--healthy-steps", "8", "--yes")
    directory, pid = pause(word, follower)
    os.kill(pid, signal.SIGKILL)
    assert ended(follower, 300) == 4
    as_of_an_earlier_build(directory, source, target)
    again = midstream("--continue", directory.migration, "--json")
    assert again.code == 0, again.stderr
    assert again.result["outcome"] == "completed"
    assert json.loads(directory.certificate_file.read_text())["valid"]
    chain = records.OwnershipChain.read(target.paths.ownership)
    assert [(each.epoch, each.owner, bool(each.consent)) for each in chain.entries] == [
        (1, "one", True),
        (2, "two", False),
    ]
    assert (target.running, source.running) == (True, False)
    assert_one_lineage(target)
    back = midstream("--fleet", fleet, "--migrate", "r", "--to", "one", "--healthy-steps", "2", "--yes")
    assert back.code == 0, back.stderr
    assert (source.running, source.fence.epoch) == (True, 3)
