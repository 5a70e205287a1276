"""Terminal UI on a fleet whose file is read after the first frame."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from midstream.errors import UsageError
from midstream.fleet.fleet_file import load_fleet
from midstream.hosts.host_pool import HostPool
from midstream.tui.app import MidstreamApp
from midstream.tui.fleet_session import FleetSession, UnopenedFleet
from midstream.tui.run_tui import run_tui
from midstream.watch.snapshot import CONNECTING, Snapshot
from support.tui.terminal import TMUX, Terminal

KNOWN = {"here": "local", "lab": "ssh"}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / "state"))
    fleet = tmp_path / "fleet.yaml"
    hosts = f"hosts: {{here: {{type: local, root: {tmp_path}/root}}}}\n"
    fleet.write_text(hosts + "targets: {two: {type: hosts, hosts: [here]}}\n")
    return fleet


def unopened(file: Path, opened: list[int]) -> UnopenedFleet:
    def open_hosts() -> HostPool:
        opened.append(1)
        return HostPool(load_fleet(file))

    return UnopenedFleet(str(file), open_hosts, KNOWN)


def test_snapshot_before_the_fleet_is_read_has_the_known_hosts(file: Path) -> None:
    opened: list[int] = []
    session = FleetSession(unopened(file, opened))
    assert [(host.name, host.kind, host.link) for host in session.snapshot().hosts] == [
        ("here", "local", CONNECTING),
        ("lab", "ssh", CONNECTING),
    ]
    session.close()
    assert not opened


def test_fleet_is_read_by_the_first_action_and_once(file: Path) -> None:
    opened: list[int] = []
    session = FleetSession(unopened(file, opened))
    assert [target.name for target in session.actions.targets()] == ["here", "two"]
    assert session.actions.command("--status") == f"midstream --fleet {file} --status"
    assert [host.name for host in session.snapshot().hosts] == ["here"]
    session.start()
    session.close()
    assert opened == [1]


def test_subscriber_of_an_unread_fleet_gets_its_changes(file: Path) -> None:
    session = FleetSession(unopened(file, []))
    live, unsubscribed = threading.Event(), threading.Event()

    def changed(snapshot: Snapshot) -> None:
        if snapshot.hosts[0].link == "live":
            live.set()

    session.subscribe(changed)
    session.subscribe(lambda _: unsubscribed.set())()
    session.start()
    try:
        assert live.wait(60)
    finally:
        session.close()
    assert not unsubscribed.is_set()
    assert "here" in Path(file.parent / "state" / "fleets.json").read_text()


def test_session_that_was_closed_opens_nothing(file: Path) -> None:
    opened: list[int] = []
    session = FleetSession(unopened(file, opened))
    session.close()
    session.start()
    assert not opened


def test_error_of_the_fleet_file_ends_the_terminal_ui(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MidstreamApp, "run_alone", lambda app: app.run(headless=True, size=(80, 24)))
    reads: list[int] = []

    def open_hosts() -> HostPool:
        reads.append(1)
        raise UsageError(f"{file} is damaged", "repair it")

    with pytest.raises(UsageError, match=r"damaged \(repair it\)"):
        run_tui(UnopenedFleet(str(file), open_hosts, KNOWN))
    assert reads == [1]


@pytest.mark.long
@pytest.mark.system
@pytest.mark.skipif(TMUX is None, reason="no tmux: apt-get install tmux")
def test_second_start_shows_hosts_of_the_changed_file(
    file: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def session(screen: str, answered: str) -> None:
        terminal = Terminal(tmp_path_factory.mktemp("tmux"))
        terminal.start([sys.executable, "-m", "midstream", "--fleet", str(file)], {})
        try:
            terminal.wait(lambda text: answered in text, answered)
            assert screen in terminal.screen
            terminal.press("q")
            assert terminal.wait_exit(60)[0] == 0
        finally:
            terminal.close()

    session("here", "1 live")
    session("here", "1 live")  # read after the first frame
    file.write_text(
        f"hosts: {{den: {{type: local, root: {tmp_path}/root}}, here: {{type: local, root: {tmp_path}/other}}}}\n"
    )
    session("den", "2 live")
    session("den", "2 live")
