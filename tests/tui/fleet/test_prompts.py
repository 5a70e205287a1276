"""Prompts of SSH connections, the shell on a host, and the hardware of a host."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from textual.widgets import Input

from midstream.hosts.prompter import HostKeyPrompt, PassphrasePrompt
from midstream.tui.screens.dialogs.dialog_prompter import DialogPrompter
from midstream.watch.machine import AcceleratorUser, Disk, InfinibandPort
from support.tui import fleets
from support.tui.fleets import GB
from support.tui.prepared_actions import PreparedActions
from support.tui.screens import app_over, screen_text, settle

HOST_KEY = HostKeyPrompt("gpu1", "[10.0.0.1]:2222", "ssh-ed25519", "SHA256:abcdef", "/home/me/.ssh/known_hosts")
PASSPHRASE = PassphrasePrompt("gpu1", "/home/me/.ssh/id_ed25519")


class PendingPrompt:
    """A prompt from another thread, and its answer."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self.answers: list[Any] = []
        self.thread = threading.Thread(target=lambda: self.answers.append(ask()))
        self.thread.start()

    @property
    def done(self) -> bool:
        return not self.thread.is_alive()


async def test_host_key_prompt_accepts_only_a_typed_yes() -> None:
    app = app_over(fleets.big_fleet())
    prompter = DialogPrompter(app)
    pending = PendingPrompt(lambda: prompter.accept(HOST_KEY))  # before the app runs
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, lambda: "First contact with gpu1" in screen_text(app))
        text = screen_text(app)
        assert "ssh-ed25519 SHA256:abcdef" in text
        assert "[10.0.0.1]:2222" in text
        await pilot.press("y", "enter")
        await settle(pilot)
        assert not pending.done
        await pilot.press("e", "s", "enter")
        await settle(pilot, lambda: pending.done)
    assert pending.answers == [True]


async def test_host_key_prompt_esc_rejects() -> None:
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        pending = PendingPrompt(lambda: DialogPrompter(app).accept(HOST_KEY))
        await settle(pilot, lambda: "First contact" in screen_text(app))
        await pilot.press("escape")
        await settle(pilot, lambda: pending.done)
    assert pending.answers == [False]


async def test_passphrase_prompt_hides_input() -> None:
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        pending = PendingPrompt(lambda: DialogPrompter(app).passphrase(replace(PASSPHRASE, again=True)))
        await settle(pilot, lambda: bool(app.screen.query(Input)) and "id_ed25519 is locked" in screen_text(app))
        assert "Wrong passphrase" in screen_text(app)
        await pilot.press(*"sesame")
        await settle(pilot)
        assert app.screen.query_one(Input).value == "sesame"
        assert "sesame" not in screen_text(app)
        await pilot.press("enter")
        await settle(pilot, lambda: pending.done)
    assert pending.answers == ["sesame"]


async def test_passphrase_prompt_may_be_declined() -> None:
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        pending = PendingPrompt(lambda: DialogPrompter(app).passphrase(PASSPHRASE))
        await settle(pilot, lambda: "is locked" in screen_text(app))
        await pilot.press("escape")
        await settle(pilot, lambda: pending.done)
    assert pending.answers == [""]


async def test_prompt_on_closing_app_has_no_answer() -> None:
    app = app_over(fleets.big_fleet())
    prompter = DialogPrompter(app)
    async with app.run_test(size=(80, 24)) as pilot:
        pending = PendingPrompt(lambda: prompter.accept(HOST_KEY))
        await settle(pilot, lambda: "First contact" in screen_text(app))
    prompter.close()
    late = PendingPrompt(lambda: prompter.passphrase(PASSPHRASE))
    for each in (pending, late):
        each.thread.join(20)
        assert each.answers == [None]


async def test_shell_is_refused_in_read_only_mode() -> None:
    actions = PreparedActions()
    app = app_over(fleets.big_fleet(), actions, readonly=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("1", "s")
        await settle(pilot)
        assert [note.message for note in app._notifications] == ["--readonly: changes are refused"]
    assert actions.calls == []


async def test_shell_without_suspend_shows_an_error() -> None:
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(120, 24)) as pilot:
        await pilot.press("1", "s")
        await settle(pilot)
        assert [note.message for note in app._notifications] == [
            "this terminal cannot be suspended: use ssh in another one"
        ]


async def test_host_screen_shows_processes_and_hardware() -> None:
    machine = fleets.machine(
        "large",
        8,
        "NVIDIA H100 80GB HBM3",
        users=(
            AcceleratorUser(4242, "alice", "python -m train", fleets.NOW - 7500, 61_200_000_000, "nano"),
            AcceleratorUser(7, "", "", float("-1e300"), 2**62),
            AcceleratorUser(8, "bob", "python"),
        ),
        clock_skew=-300.0,
        system="Ubuntu 22.04.4 LTS",
        glibc="2.35",
        driver="550.54.15",
        cuda="12.4",
        clock_synchronized=False,
        disks=(Disk("/", "/dev/sda1", 200 * GB, 100 * GB), Disk("/data", "/dev/md0", 7000 * GB, 3000 * GB)),
        infiniband=(InfinibandPort("mlx5_0", 1, "active", 400.0, "InfiniBand"),),
    )
    units = (replace(item, pids=(4242,) if item.index not in (3, 7) else (7,)) for item in machine.accelerators)
    machine = replace(machine, accelerators=tuple(units))
    app = app_over(fleets.snapshot([fleets.host("large", machine=machine)], []))
    async with app.run_test(size=(160, 45)) as pilot:
        await pilot.press("1")
        await settle(pilot)
        text = screen_text(app)
        await pilot.press("v", "2")
        await settle(pilot, lambda: "pid 4242" in screen_text(app))
        assert text.count("pid ") == screen_text(app).count("pid ")
    for words in (
        "pid 4242  alice  on 0-2,4-6  61.2 GB  for 2h00  run nano  python -m train\n",
        f"pid 7     ?      on 3,7{' ' * 35}hidden process\n",
        f"pid 8     bob{' ' * 45}python\n",
        "driver 550.54.15",
        "CUDA 12.4",
        "glibc 2.35",
        "clock not synchronized",
        "mlx5_0:1 active 400 Gb/s",
        "/data 3.0 TB of 7.0 TB",
    ):
        assert words in text, f"{words} in\n{text}"
