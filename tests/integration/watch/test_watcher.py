"""Watcher of local hosts: snapshots equal the run directories."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from midstream.fleet.fleet import Fleet, HostConfig, LocalHostConfig, SshHostConfig
from midstream.hosts.host_pool import HostPool
from midstream.hosts.ssh import connection, transport
from midstream.listing.run_facts import loss
from midstream.watch.host_feed import HostFeed
from midstream.watch.snapshot import DOWN, LIVE, STALE, Snapshot
from midstream.watch.snapshot_store import SnapshotStore
from midstream.watch.watcher import Watcher, take_snapshot
from midstream_core import records
from support.run_directory import RunDirectory, dead_process
from support.watching import PATIENCE, run_of, seen

INTERVAL = 0.05

Watching = Callable[..., Watcher]


@pytest.fixture
def watching() -> Iterator[Watching]:
    """Start watchers of named hosts; they are stopped afterwards."""
    made: list[tuple[Watcher, HostPool]] = []

    def start(**hosts: HostConfig) -> Watcher:
        fleet = Fleet(hosts=hosts)
        opened = HostPool(fleet)
        watch = Watcher(fleet, opened, interval=INTERVAL)
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
    """Return the pids of the probes that this process started: the fork server's children."""
    servers = [str(pid) for pid in _children(str(os.getpid())) if b"fork_server" in _command(pid)]
    return _children(",".join(servers)) if servers else []


def _children(parents: str) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", parents], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # `ps` itself
        return b""


def test_run_is_shown_as_it_grows(tmp_path: Path, watching: Watching) -> None:
    run = RunDirectory(tmp_path)
    run.fence(1)
    run.status(1, records.TRAINING, 2)
    run.rows(1, 0, 1)
    watch = watching(here=LocalHostConfig(root=str(tmp_path), devices=2))
    view = run_of(seen(watch, live))
    assert view is not None
    assert (view.key, view.state, view.step, loss(view), view.epoch) == (("here", "run"), "training", 2, 0.5, 1)
    run.rows(1, 2)
    run.log(1, "hello\n")
    run.checkpoint(3)
    after = run_of(
        seen(watch, lambda now: (it := run_of(now)) is not None and len(it.curve) == 3 and bool(it.checkpoints))
    )
    assert after is not None
    assert [(row["global_step"], row["attempt"]) for row in after.curve] == [(0, 1), (1, 1), (2, 1)]
    assert [checkpoint.name for checkpoint in after.checkpoints] == ["step-3-a001"]
    assert len(view.curve) == 2, "a snapshot does not change"
    seen(watch, lambda now: (it := run_of(now)) is not None and list(it.log) == ["hello"])


def test_run_without_its_process_is_lost(tmp_path: Path, watching: Watching) -> None:
    RunDirectory(tmp_path).status(1, records.TRAINING, 2, dead_process())
    view = run_of(seen(watching(here=LocalHostConfig(root=str(tmp_path))), live))
    assert view is not None
    assert view.state == "lost"


def test_process_exited_before_its_status_is_lost(tmp_path: Path, watching: Watching) -> None:
    """For example on a full disk. An attempt that was never started is not lost."""
    run = RunDirectory(tmp_path)
    attempt = run.attempt(1)
    watch = watching(here=LocalHostConfig(root=str(tmp_path)))
    view = run_of(seen(watch, lambda now: run_of(now) is not None))
    assert view is not None
    assert view.state == "empty"
    records.write_json(attempt.launched(0), dead_process().to_json())
    seen(watch, lambda now: (it := run_of(now)) is not None and it.state == "lost")


def test_machine_is_described(tmp_path: Path, watching: Watching) -> None:
    watch = watching(here=LocalHostConfig(root=str(tmp_path), devices=2))
    # The first line may be read late on a busy machine; then a question is answered with the time.
    same_clock = lambda now: (it := now.hosts[0].machine) is not None and abs(it.clock_skew) < 1.0  # noqa: E731
    host = seen(watch, lambda now: live(now) and same_clock(now)).host("here")
    assert host is not None
    assert host.machine is not None
    assert host.kind == "local"
    assert [device.kind for device in host.machine.accelerators] == ["cpu", "cpu"]
    assert host.machine.hostname == socket.gethostname()


def test_removed_run_is_not_listed(tmp_path: Path, watching: Watching) -> None:
    run = RunDirectory(tmp_path)
    watch = watching(here=LocalHostConfig(root=str(tmp_path)))
    seen(watch, lambda now: bool(now.runs))
    shutil.rmtree(run.paths.dir)
    seen(watch, lambda now: not now.runs)


def test_seal_removes_rows_from_the_curve(tmp_path: Path, watching: Watching) -> None:
    run = RunDirectory(tmp_path)
    run.fence(1)
    run.lineage({"attempt": 1, "epoch": 1})
    run.rows(1, 0, 1, 2, 3)
    watch = watching(here=LocalHostConfig(root=str(tmp_path)))
    seen(watch, lambda now: (it := run_of(now)) is not None and len(it.curve) == 4)
    run.fence(2, "there", 3, [{"epoch": 1, "step": 3}])
    view = run_of(seen(watch, lambda now: (it := run_of(now)) is not None and it.epoch == 2))
    assert view is not None
    assert [row["global_step"] for row in view.curve] == [0, 1, 2]


def test_malformed_record_is_reported_and_hides_nothing(tmp_path: Path, watching: Watching) -> None:
    run = RunDirectory(tmp_path)
    run.rows(1, 0)
    Path(run.paths.fence).write_text('{"owner": "here"}')
    other = RunDirectory(tmp_path, "other")
    other.fence(3)
    watch = watching(here=LocalHostConfig(root=str(tmp_path)))
    now = seen(watch, live)
    view, beside = run_of(now), run_of(now, "other")
    assert view is not None
    assert "fence.json: lacks epoch" in view.problem
    assert len(view.curve) == 1
    assert beside is not None
    assert beside.epoch == 3
    run.fence(1)
    seen(watch, lambda now: (it := run_of(now)) is not None and it.epoch == 1 and not it.problem)


def test_killed_probe_restarts_without_duplicate_rows(tmp_path: Path, watching: Watching) -> None:
    run = RunDirectory(tmp_path)
    run.rows(1, *range(5))
    watch = watching(here=LocalHostConfig(root=str(tmp_path)))
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


def test_failed_feed_starts_again(tmp_path: Path, watching: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory(tmp_path)
    run.rows(1, *range(5))
    watch = watching(here=LocalHostConfig(root=str(tmp_path)))
    seen(watch, lambda now: live(now) and (it := run_of(now)) is not None and len(it.curve) == 5)
    real, failed = SnapshotStore.take, threading.Event()

    def take(store: SnapshotStore, host: str, line: Mapping[str, Any]) -> None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("can't start new thread")
        real(store, host, line)

    monkeypatch.setattr(SnapshotStore, "take", take)
    assert failed.wait(PATIENCE)
    run.rows(1, 5)
    seen(watch, lambda now: live(now) and (it := run_of(now)) is not None and len(it.curve) == 6)


def test_failed_check_of_the_feeds_is_repeated(
    tmp_path: Path, watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watching(here=LocalHostConfig(root=str(tmp_path)))
    seen(watch, live)
    real, failed, again = HostFeed.tick, threading.Event(), threading.Event()

    def tick(feed: HostFeed) -> None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("can't start new thread")
        again.set()
        real(feed)

    monkeypatch.setattr(HostFeed, "tick", tick)
    assert failed.wait(PATIENCE)
    assert again.wait(PATIENCE), "unreachable hosts are detected no more"


def test_probe_without_answers_is_stale_until_it_answers(tmp_path: Path, watching: Watching) -> None:
    watch = watching(here=LocalHostConfig(root=str(tmp_path)))
    seen(watch, live)
    [pid] = probes()
    os.kill(pid, signal.SIGSTOP)
    try:
        stale = seen(watch, lambda now: now.hosts[0].link == STALE)
        assert stale.hosts[0].error.startswith("no news since")
        assert stale.hosts[0].machine is not None, "the last known state is still shown"
    finally:
        os.kill(pid, signal.SIGCONT)
    assert seen(watch, live).hosts[0].error == ""


def test_unreachable_host_is_down_with_the_reason(tmp_path: Path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # without listen()
        address = f"nobody@127.0.0.1:{sock.getsockname()[1]}"
        fleet = Fleet(hosts={"gpu1": SshHostConfig(address=address), "here": LocalHostConfig(root=str(tmp_path))})
        snapshot = take_snapshot(HostPool(fleet), timeout=PATIENCE)
    down, here = snapshot.hosts
    assert (down.link, down.last_seen, down.machine) == (DOWN, None, None)
    assert "cannot be reached: Connection refused" in down.error
    assert "\n" not in down.error
    assert here.link == LIVE


def test_host_that_never_answers_is_down_after_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (transport, connection):
        monkeypatch.setattr(module, "CONNECT_TIMEOUT", 3600.0)  # longer than this test may take
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()  # accepts, and sends nothing
        fleet = Fleet(hosts={"gpu1": SshHostConfig(address=f"nobody@127.0.0.1:{sock.getsockname()[1]}")})
        [host] = take_snapshot(HostPool(fleet), timeout=1.0).hosts
    assert (host.link, host.error) == (DOWN, "no answer within 1 s")


def test_only_the_selected_hosts_are_watched(tmp_path: Path) -> None:
    fleet = Fleet(hosts={"a": LocalHostConfig(root=str(tmp_path)), "b": LocalHostConfig(root=str(tmp_path))})
    watch = Watcher(fleet, HostPool(fleet), only={"b"})
    assert [host.name for host in watch.snapshot().hosts] == ["b"]


def test_wait_for_ends_at_timeout_and_at_stop(tmp_path: Path, watching: Watching) -> None:
    watch = watching(here=LocalHostConfig(root=str(tmp_path)))
    assert watch.wait_for(lambda _: False, 0.2) is None
    ended = threading.Event()
    waiter = threading.Thread(target=lambda: (watch.wait_for(lambda _: False), ended.set()))
    waiter.start()
    watch.stop()
    assert ended.wait(PATIENCE)
    waiter.join()


def test_wait_for_raises_the_predicates_error(tmp_path: Path, watching: Watching) -> None:
    def decide(_: Snapshot) -> bool:
        raise LookupError("decided")

    with pytest.raises(LookupError, match="decided"):
        watching(here=LocalHostConfig(root=str(tmp_path))).wait_for(decide, PATIENCE)


def test_subscribers_are_called_until_they_unsubscribe(tmp_path: Path, watching: Watching) -> None:
    watch = watching(here=LocalHostConfig(root=str(tmp_path)))
    called = threading.Event()
    unsubscribe = watch.subscribe(lambda _: called.set())
    assert called.wait(PATIENCE)
    unsubscribe()
    called.clear()
    version = watch.snapshot().version
    seen(watch, lambda now: now.version > version + 3)
    assert not called.is_set()


def test_failing_subscriber_is_logged_and_removed(
    tmp_path: Path, watching: Watching, caplog: pytest.LogCaptureFixture
) -> None:
    watch = watching(here=LocalHostConfig(root=str(tmp_path)))
    calls: list[int] = []

    def fail(now: Snapshot) -> None:
        calls.append(now.version)
        raise LookupError("a closed screen")

    versions: list[int] = []
    watch.subscribe(fail)
    watch.subscribe(lambda now: versions.append(now.version))
    seen(watch, lambda _: len(versions) > 2)
    assert len(calls) == 1
    assert "a closed screen" in caplog.text
    assert versions == sorted(set(versions))


def test_hosts_after_a_failing_check_are_checked(
    tmp_path: Path, watching: Watching, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ticks: list[str] = []

    def tick(feed: HostFeed) -> None:
        ticks.append(feed.name)
        if feed.name == "a":
            raise LookupError("no such ping")

    monkeypatch.setattr(HostFeed, "tick", tick)
    watch = watching(**{name: LocalHostConfig(root=str(tmp_path)) for name in ("a", "b")})
    seen(watch, lambda _: ticks.count("a") > 2)
    assert ticks[:4] == ["a", "b", "a", "b"]
    assert caplog.text.count("the check of a failed") == 1, "it is logged once"


def test_snapshot_never_mixes_two_polls(tmp_path: Path, watching: Watching) -> None:
    """An engine writes log, metrics, status: a status implies all lines before it."""
    run = RunDirectory(tmp_path)
    watch = watching(here=LocalHostConfig(root=str(tmp_path)))
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


def test_new_attempt_starts_with_an_empty_log(tmp_path: Path, watching: Watching) -> None:
    run = RunDirectory(tmp_path)
    run.rows(1, 0)
    run.log(1, "of the first\n")
    watch = watching(here=LocalHostConfig(root=str(tmp_path)))
    seen(watch, lambda now: (it := run_of(now)) is not None and list(it.log) == ["of the first"])
    run.rows(2, 1)
    view = run_of(seen(watch, lambda now: (it := run_of(now)) is not None and it.attempt == 2))
    assert view is not None
    assert list(view.log) == []


def test_unchanged_run_is_the_same_object(tmp_path: Path, watching: Watching) -> None:
    run = RunDirectory(tmp_path)
    run.rows(1, 0)
    watch = watching(here=LocalHostConfig(root=str(tmp_path)))
    before = seen(watch, lambda now: live(now) and bool(now.runs))
    after = seen(watch, lambda now: now.version > before.version + 2)
    assert after.runs[0] is before.runs[0], "a heartbeat of the host changes no run"


def test_stop_ends_every_probe(tmp_path: Path, watching: Watching) -> None:
    watch = watching(a=LocalHostConfig(root=str(tmp_path)), b=LocalHostConfig(root=str(tmp_path)))
    seen(watch, live)
    assert len(probes()) == 2
    watch.stop()
    assert probes() == []
