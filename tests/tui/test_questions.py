"""Questions of those who reach hosts, on the screen; the shell on a host; what a machine is made of."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from textual.widgets import Input

from midstream.hosts.prompter import FirstContact, Passphrase
from midstream.tui.dialog_prompter import DialogPrompter
from midstream.watch.snapshot import AcceleratorUser, Disk, InfinibandPort
from tui import worlds
from tui.looking import app_over, screen_text, settle
from tui.worlds import GB, Answers

CONTACT = FirstContact("gpu1", "[10.0.0.1]:2222", "ssh-ed25519", "SHA256:abcdef", "/home/me/.ssh/known_hosts")
WANTED = Passphrase("gpu1", "/home/me/.ssh/id_ed25519")


class Asked:
    """A question from another thread, and its answer."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self.answers: list[Any] = []
        self._thread = threading.Thread(target=lambda: self.answers.append(ask()))
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()


async def test_a_new_hosts_fingerprint_is_shown_and_only_a_typed_yes_accepts_it() -> None:
    app = app_over(worlds.big_fleet())
    person = DialogPrompter(app)
    asked = Asked(lambda: person.accept(CONTACT))  # before the app has begun
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, lambda: "First contact with gpu1" in screen_text(app))
        text = screen_text(app)
        assert "ssh-ed25519 SHA256:abcdef" in text
        assert "[10.0.0.1]:2222" in text
        await pilot.press("y", "enter")
        await settle(pilot)
        assert not asked.done
        await pilot.press("e", "s", "enter")
        await settle(pilot, lambda: asked.done)
    assert asked.answers == [True]


async def test_escape_does_not_accept_it() -> None:
    app = app_over(worlds.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        asked = Asked(lambda: DialogPrompter(app).accept(CONTACT))
        await settle(pilot, lambda: "First contact" in screen_text(app))
        await pilot.press("escape")
        await settle(pilot, lambda: asked.done)
    assert asked.answers == [False]


async def test_a_passphrase_is_not_shown() -> None:
    app = app_over(worlds.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        asked = Asked(lambda: DialogPrompter(app).passphrase(replace(WANTED, again=True)))
        await settle(pilot, lambda: bool(app.screen.query(Input)) and "id_ed25519 is locked" in screen_text(app))
        assert "That does not open it" in screen_text(app)
        await pilot.press(*"sesame")
        await settle(pilot)
        assert app.screen.query_one(Input).value == "sesame"
        assert "sesame" not in screen_text(app)
        await pilot.press("enter")
        await settle(pilot, lambda: asked.done)
    assert asked.answers == ["sesame"]


async def test_a_key_may_stay_locked() -> None:
    app = app_over(worlds.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        asked = Asked(lambda: DialogPrompter(app).passphrase(WANTED))
        await settle(pilot, lambda: "is locked" in screen_text(app))
        await pilot.press("escape")
        await settle(pilot, lambda: asked.done)
    assert asked.answers == [""]


async def test_who_is_asked_while_the_screen_goes_away_has_not_answered() -> None:
    app = app_over(worlds.big_fleet())
    person = DialogPrompter(app)
    async with app.run_test(size=(80, 24)) as pilot:
        asked = Asked(lambda: person.accept(CONTACT))
        await settle(pilot, lambda: "First contact" in screen_text(app))
    person.leave()
    late = Asked(lambda: person.passphrase(WANTED))
    for each in (asked, late):
        each._thread.join(20)
        assert each.answers == [None]


async def test_the_shell_is_refused_where_nothing_may_change() -> None:
    answers = Answers()
    app = app_over(worlds.big_fleet(), answers, readonly=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("1", "s")
        await settle(pilot)
        assert [note.message for note in app._notifications] == ["--readonly: this screen changes nothing"]
    assert answers.asked == []


async def test_a_terminal_that_cannot_be_given_away_is_said() -> None:
    app = app_over(worlds.big_fleet())
    async with app.run_test(size=(120, 24)) as pilot:
        await pilot.press("1", "s")
        await settle(pilot)
        assert [note.message for note in app._notifications] == [
            "this terminal cannot be given away: use ssh in another"
        ]


async def test_a_machine_is_shown_with_who_uses_it_and_what_it_is_made_of() -> None:
    machine = worlds.machine(
        "large",
        8,
        "NVIDIA H100 80GB HBM3",
        users=(AcceleratorUser(4242, "alice", "python -m train"), AcceleratorUser(7, "", "")),
        system="Ubuntu 22.04.4 LTS",
        glibc="2.35",
        driver="550.54.15",
        cuda="12.4",
        clock_synchronized=False,
        disks=(Disk("/", "/dev/sda1", 200 * GB, 100 * GB), Disk("/data", "/dev/md0", 7000 * GB, 3000 * GB)),
        infiniband=(InfinibandPort("mlx5_0", 1, "active", 400.0, "InfiniBand"),),
    )
    app = app_over(worlds.snapshot([worlds.host("large", machine=machine)], []))
    async with app.run_test(size=(160, 45)) as pilot:
        await pilot.press("1")
        await settle(pilot)
        text = screen_text(app)
    for words in (
        "pid 4242  alice  python -m train",
        "pid 7  ?  a process that cannot be seen",
        "driver 550.54.15",
        "CUDA 12.4",
        "glibc 2.35",
        "clock follows no server",
        "mlx5_0:1 active 400 Gb/s",
        "/data 3.0 TB of 7.0 TB",
    ):
        assert words in text, f"{words} in\n{text}"
