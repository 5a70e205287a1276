"""Watching hosts of this machine: what is shown is what is there, and silence is shown as silence."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from midstream.fleet.fleet import Fleet, HostConfig, LocalHost, SshHost
from midstream.hosts.host_pool import Hosts
from midstream.watch.snapshot import DOWN, LIVE, STALE, Snapshot
from midstream.watch.watcher import Watch, look_once
from midstream_engine import records
from support.run_directory import RunDirectory, dead_process
from support.watching import PATIENCE, run_of, seen

INTERVAL = 0.05

Watching = Callable[..., Watch]


@pytest.fixture
def watching() -> Iterator[Watching]:
    """Starts watches of hosts given by name, and ends them."""
    made: list[tuple[Watch, Hosts]] = []

    def start(**hosts: HostConfig) -> Watch:
        fleet = Fleet(hosts=hosts)
        opened = Hosts(fleet)
        watch = Watch(fleet, opened, interval=INTERVAL)
        made.append((watch, opened))
        watch.start()
        return watch

    yield start
    for watch, opened in made:
        watch.stop()
        opened.close()


def live(snapshot: Snapshot) -> bool:
    return all(host.link == LIVE for host in snapshot.hosts)


def probes() -> list[int]:
    """Pids of the children of this process."""
    argv = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(os.getpid())]
    found = subprocess.run(argv, capture_output=True, text=True)
    return [int(line.split()[0]) for line in found.stdout.splitlines() if "import json, types" in line]


def test_a_run_is_seen_as_it_grows(tmp_path: Path, watching: Watching):
    run = RunDirectory(tmp_path)
    run.fence(1)
    run.status(1, records.TRAINING, 2)
    run.rows(1, 0, 1)
    watch = watching(here=LocalHost(root=str(tmp_path), devices=2))
    view = run_of(seen(watch, live))
    assert view is not None
    assert (view.key, view.state, view.step, view.loss, view.epoch) == (("here", "run"), "training", 2, 0.5, 1)
    run.rows(1, 2)
    run.log(1, "hello\n")
    run.checkpoint(3)
    after = run_of(
        seen(watch, lambda now: (it := run_of(now)) is not None and len(it.curve) == 3 and bool(it.checkpoints))
    )
    assert after is not None
    assert [(row["global_step"], row["attempt"]) for row in after.curve] == [(0, 1), (1, 1), (2, 1)]
    assert [point.name for point in after.checkpoints] == ["step-3-a001"]
    assert len(view.curve) == 2, "a snapshot stays what it was"
    seen(watch, lambda now: (it := run_of(now)) is not None and list(it.log) == ["hello"])


def test_a_claim_to_run_without_a_process_is_lost(tmp_path: Path, watching: Watching):
    RunDirectory(tmp_path).status(1, records.TRAINING, 2, dead_process())
    view = run_of(seen(watching(here=LocalHost(root=str(tmp_path))), live))
    assert view is not None
    assert view.state == "lost"


def test_a_process_that_ended_before_it_had_a_status_is_lost(tmp_path: Path, watching: Watching):
    """On a full disk, say. A number that was claimed, and under which nothing was started, is not."""
    run = RunDirectory(tmp_path)
    attempt = run.attempt(1)
    watch = watching(here=LocalHost(root=str(tmp_path)))
    view = run_of(seen(watch, lambda now: run_of(now) is not None))
    assert view is not None
    assert view.state == "empty"
    records.write_json(attempt.launched(0), dead_process().to_json())
    seen(watch, lambda now: (it := run_of(now)) is not None and it.state == "lost")


def test_the_machine_is_described(tmp_path: Path, watching: Watching):
    host = seen(watching(here=LocalHost(root=str(tmp_path), devices=2)), live).host("here")
    assert host is not None
    assert host.machine is not None
    assert host.kind == "local"
    assert [device.kind for device in host.machine.accelerators] == ["cpu", "cpu"]
    assert host.machine.hostname == socket.gethostname()
    assert abs(host.machine.clock_skew) < 1.0


def test_a_run_that_is_removed_is_gone(tmp_path: Path, watching: Watching):
    run = RunDirectory(tmp_path)
    watch = watching(here=LocalHost(root=str(tmp_path)))
    seen(watch, lambda now: bool(now.runs))
    shutil.rmtree(run.paths.dir)
    seen(watch, lambda now: not now.runs)


def test_a_seal_takes_rows_from_the_curve(tmp_path: Path, watching: Watching):
    run = RunDirectory(tmp_path)
    run.fence(1)
    run.lineage({"attempt": 1, "epoch": 1})
    run.rows(1, 0, 1, 2, 3)
    watch = watching(here=LocalHost(root=str(tmp_path)))
    seen(watch, lambda now: (it := run_of(now)) is not None and len(it.curve) == 4)
    run.fence(2, "there", 3, [{"epoch": 1, "step": 3}])
    view = run_of(seen(watch, lambda now: (it := run_of(now)) is not None and it.epoch == 2))
    assert view is not None
    assert [row["global_step"] for row in view.curve] == [0, 1, 2]


def test_a_record_of_another_shape_is_said_and_hides_nothing(tmp_path: Path, watching: Watching):
    run = RunDirectory(tmp_path)
    run.rows(1, 0)
    Path(run.paths.fence).write_text('{"owner": "here"}')
    other = RunDirectory(tmp_path, "other")
    other.fence(3)
    watch = watching(here=LocalHost(root=str(tmp_path)))
    now = seen(watch, live)
    view, beside = run_of(now), run_of(now, "other")
    assert view is not None
    assert "fence.json: lacks epoch" in view.trouble
    assert len(view.curve) == 1
    assert beside is not None
    assert beside.epoch == 3
    run.fence(1)
    seen(watch, lambda now: (it := run_of(now)) is not None and it.epoch == 1 and not it.trouble)


def test_a_probe_that_dies_is_started_again_and_nothing_is_told_twice(tmp_path: Path, watching: Watching):
    run = RunDirectory(tmp_path)
    run.rows(1, *range(5))
    watch = watching(here=LocalHost(root=str(tmp_path)))
    seen(watch, lambda now: live(now) and (it := run_of(now)) is not None and len(it.curve) == 5)
    links: list[tuple[str, str]] = []
    watch.subscribe(lambda now: links.append((now.hosts[0].link, now.hosts[0].error)))
    [pid] = probes()
    os.kill(pid, signal.SIGKILL)
    run.rows(1, 5)
    now = seen(watch, lambda now: live(now) and (it := run_of(now)) is not None and len(it.curve) == 6)
    assert [row["global_step"] for row in now.runs[0].curve] == list(range(6))
    assert any(link == STALE and "reconnecting" in error for link, error in links)
    assert probes() != [pid]


def test_silence_is_shown_as_stale_and_ends(tmp_path: Path, watching: Watching):
    watch = watching(here=LocalHost(root=str(tmp_path)))
    seen(watch, live)
    [pid] = probes()
    os.kill(pid, signal.SIGSTOP)
    try:
        stale = seen(watch, lambda now: now.hosts[0].link == STALE)
        assert stale.hosts[0].error.startswith("no news since")
        assert stale.hosts[0].machine is not None, "what was known is still shown"
    finally:
        os.kill(pid, signal.SIGCONT)
    assert seen(watch, live).hosts[0].error == ""


def test_hosts_that_cannot_be_reached_are_down_with_the_reason(tmp_path: Path):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # nobody listens
        address = f"nobody@127.0.0.1:{sock.getsockname()[1]}"
        fleet = Fleet(hosts={"gpu1": SshHost(address=address), "here": LocalHost(root=str(tmp_path))})
        snapshot = look_once(fleet, Hosts(fleet), timeout=PATIENCE)
    down, here = snapshot.hosts
    assert (down.link, down.last_seen, down.machine) == (DOWN, None, None)
    assert "cannot be reached: Connection refused" in down.error
    assert "\n" not in down.error
    assert here.link == LIVE


def test_a_host_that_never_answers_is_down_when_time_is_up(tmp_path: Path):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()  # accepts, and says nothing
        fleet = Fleet(hosts={"gpu1": SshHost(address=f"nobody@127.0.0.1:{sock.getsockname()[1]}")})
        began = time.monotonic()
        [host] = look_once(fleet, Hosts(fleet), timeout=1.0).hosts
    assert (host.link, host.error) == (DOWN, "no answer within 1 s")
    assert time.monotonic() - began < 3.0


def test_only_the_hosts_that_matter_are_watched(tmp_path: Path):
    fleet = Fleet(hosts={"a": LocalHost(root=str(tmp_path)), "b": LocalHost(root=str(tmp_path))})
    watch = Watch(fleet, Hosts(fleet), only={"b"})
    assert [host.name for host in watch.snapshot().hosts] == ["b"]


def test_waiting_ends_with_the_time_and_with_the_watch(tmp_path: Path, watching: Watching):
    watch = watching(here=LocalHost(root=str(tmp_path)))
    assert watch.wait_for(lambda now: False, 0.2) is None
    ended = threading.Event()
    waiter = threading.Thread(target=lambda: (watch.wait_for(lambda now: False), ended.set()))
    waiter.start()
    watch.stop()
    assert ended.wait(PATIENCE)
    waiter.join()


def test_what_a_predicate_raises_reaches_its_caller(tmp_path: Path, watching: Watching):
    def decide(now: Snapshot) -> bool:
        raise LookupError("decided")

    with pytest.raises(LookupError, match="decided"):
        watching(here=LocalHost(root=str(tmp_path))).wait_for(decide, PATIENCE)


def test_subscribers_are_told_until_they_leave(tmp_path: Path, watching: Watching):
    watch = watching(here=LocalHost(root=str(tmp_path)))
    told = threading.Event()
    leave = watch.subscribe(lambda now: told.set())
    assert told.wait(PATIENCE)
    leave()
    told.clear()
    version = watch.snapshot().version
    seen(watch, lambda now: now.version > version + 3)
    assert not told.is_set()


def test_a_subscriber_that_fails_is_logged_and_disturbs_nobody(
    tmp_path: Path, watching: Watching, caplog: pytest.LogCaptureFixture
):
    watch = watching(here=LocalHost(root=str(tmp_path)))
    calls: list[int] = []

    def fail(now: Snapshot) -> None:
        calls.append(now.version)
        raise LookupError("a screen that is gone")

    versions: list[int] = []
    watch.subscribe(fail)
    watch.subscribe(lambda now: versions.append(now.version))
    seen(watch, lambda now: len(versions) > 2)
    assert len(calls) == 1
    assert "a screen that is gone" in caplog.text
    assert versions == sorted(set(versions))


def test_a_look_is_shown_as_a_whole(tmp_path: Path, watching: Watching):
    """Log, then metrics, then status is how an engine writes: whoever sees a status sees all that was before it."""
    run = RunDirectory(tmp_path)
    watch = watching(here=LocalHost(root=str(tmp_path)))
    seen(watch, live)
    shown: list[tuple[int, int, int]] = []

    def note(now: Snapshot) -> None:
        if (view := run_of(now)) is not None and view.status is not None:
            shown.append((view.status.step, len(view.curve), len(view.log)))

    watch.subscribe(note)
    for step in range(20):
        run.log(1, f"step {step}\n")
        run.rows(1, step)
        run.status(1, records.TRAINING, step + 1)
        seen(watch, lambda now, step=step: (it := run_of(now)) is not None and it.step == step + 1)
    assert shown
    assert all(rows >= step and lines >= step for step, rows, lines in shown), shown


def test_a_new_attempt_begins_with_an_empty_log(tmp_path: Path, watching: Watching):
    run = RunDirectory(tmp_path)
    run.rows(1, 0)
    run.log(1, "of the first\n")
    watch = watching(here=LocalHost(root=str(tmp_path)))
    seen(watch, lambda now: (it := run_of(now)) is not None and list(it.log) == ["of the first"])
    run.rows(2, 1)
    view = run_of(seen(watch, lambda now: (it := run_of(now)) is not None and it.attempt == 2))
    assert view is not None
    assert list(view.log) == []


def test_snapshots_are_the_same_object_until_something_changes(tmp_path: Path, watching: Watching):
    run = RunDirectory(tmp_path)
    run.rows(1, 0)
    watch = watching(here=LocalHost(root=str(tmp_path)))
    before = seen(watch, lambda now: live(now) and bool(now.runs))
    after = seen(watch, lambda now: now.version > before.version + 2)
    assert after.runs[0] is before.runs[0], "a beat of the host changes no run"


def test_stopping_ends_every_probe(tmp_path: Path, watching: Watching):
    watch = watching(a=LocalHost(root=str(tmp_path)), b=LocalHost(root=str(tmp_path)))
    seen(watch, live)
    assert len(probes()) == 2
    watch.stop()
    assert probes() == []
