"""Renew the pictures of a run and of its certificate, from a real run.

    python docs/pictures/take_run.py [STEPS]

It trains `configs/gpt2_nano.yaml` on a local host, migrates it to another one after STEPS updates, and opens the
terminal UI in tmux, where the key P saves each picture.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "tests"))

from support.tui.terminal import Terminal  # noqa: E402  (tests are no package of the project)

PICTURES = Path(__file__).parent
STEPS = 300  # before the migration; half of them follow it
SIZE = (120, 32)  # cells


def main(before: int) -> None:
    """Train, migrate after ``before`` updates, and save both pictures."""
    directory = Path(tempfile.mkdtemp(prefix="midstream-pictures-"))
    fleet = directory / "fleet.yaml"
    hosts = {"lab": 2, "rented": 4}
    lines = [f"  {name}: {{type: local, devices: {count}, root: {directory / name}}}" for name, count in hosts.items()]
    fleet.write_text("\n".join(["hosts:", *lines, ""]))
    env = {**os.environ, "MIDSTREAM_FLEET": str(fleet), "MIDSTREAM_STATE": str(directory / "state")}
    try:
        midstream(env, "--launch", "configs/gpt2_nano.yaml", "--on", "lab", "--run-id", "webtext")
        while steps(env) < before:
            subprocess.run(["sleep", "10"], check=True)
        midstream(env, "--migrate", "webtext", "--to", "rented", "--healthy-steps", str(before // 2), "--yes")
        take(directory, env)
        midstream(env, "--stop", "webtext")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def midstream(env: dict[str, str], *words: str) -> str:
    """Run a command of midstream and return its output."""
    command = [sys.executable, "-m", "midstream", *words]
    return subprocess.run(command, env=env, cwd=REPOSITORY, check=True, text=True, stdout=subprocess.PIPE).stdout


def steps(env: dict[str, str]) -> int:
    """Return the number of updates that are recorded."""
    return len(midstream(env, "--metrics", "webtext").splitlines())


def take(directory: Path, env: dict[str, str]) -> None:
    """Open the terminal UI, and save the curve of the run and the certificate of its migration."""
    terminal = Terminal(directory, *SIZE)
    shown = {name: env[name] for name in ("MIDSTREAM_FLEET", "MIDSTREAM_STATE")}
    terminal.start([sys.executable, "-m", "midstream"], {**shown, "TERM": "tmux-256color", "COLORTERM": "truecolor"})
    terminal.wait(lambda screen: "webtext" in screen, "the run")
    terminal.press("2", "Enter")
    terminal.wait(lambda screen: "1 Curves" in screen and "training" in screen, "its curve")
    save(terminal, directory, "run")
    terminal.press("Escape")
    terminal.wait(lambda screen: "3 Migrations" in screen, "the list of runs")
    terminal.press("3", "Enter")
    terminal.wait(lambda screen: "2 Certificate" in screen, "the migration")
    terminal.press("2")
    terminal.wait(lambda screen: "verified" in screen, "the certificate")
    save(terminal, directory, "certificate")
    terminal.close()


def save(terminal: Terminal, directory: Path, name: str) -> None:
    """Save the screen as a picture of the docs; its notification is not on it."""
    terminal.press("P")
    terminal.wait(lambda _: [*(directory / "state").rglob("screen-*.svg")], "the picture")
    [file] = (directory / "state").rglob("screen-*.svg")
    shutil.move(file, PICTURES / f"{name}.svg")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else STEPS)
