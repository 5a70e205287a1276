"""The first hour of a user: README and tutorial, typed into a terminal from a clean home.

Each command is typed as its page has it, and must lead where the text says. Packages come from this environment, so
that nothing is downloaded; with MIDSTREAM_TEST_DOWNLOADS=1 they are installed as for a user, here and on the hosts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulators.sshd import SSHD, Lab
from support.doc_pages import Block, blocks
from support.paths import REPOSITORY
from support.tui.terminal import TMUX, Terminal

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(TMUX is None, reason="no tmux: apt-get install tmux"),
    pytest.mark.skipif(not SSHD, reason="no sshd: apt-get install openssh-server"),
]
DOWNLOADS = bool(os.environ.get("MIDSTREAM_TEST_DOWNLOADS"))
README, TUTORIAL = REPOSITORY / "README.md", REPOSITORY / "docs" / "getting-started.md"
TIMEOUT = 1800.0  # seconds for a command, on a busy machine: a migration waits for a hundred steps
PROMPT = re.compile(r"^\[(\d+)\] (\d+)> ?$")  # exit code of the last command, number of the next one


class User:
    """A user with a clean home, a copy of the repository, and two machines behind SSH."""

    def __init__(self, directory: Path) -> None:
        self.lab = Lab(directory / "lab")
        self.home, self.tree = directory / "home", directory / "midstream"
        (self.home / ".ssh").mkdir(parents=True)
        python = None if DOWNLOADS else sys.executable
        servers = [self.lab.host("lab", devices=2, python=python), self.lab.host("rented", devices=4, python=python)]
        text = "".join((server.directory / "ssh_config").read_text() for server in servers)
        (self.home / ".ssh" / "config").write_text(text)
        _copy_repository(self.tree)
        self._terminal = Terminal(directory, width=120, height=40)
        env = {"HOME": str(self.home), "TERM": "screen-256color", "PS1": r"[$?] \#> ", "LANG": "C.UTF-8"}
        unset = [word for name in os.environ if name.startswith("MIDSTREAM_") for word in ("-u", name)]
        self._terminal.start(["env", *unset, "bash", "--norc", "--noprofile", "-i"], env)
        self._number = 1

    def enter_tree(self) -> None:
        """Change to the copy of the repository, once the shell reads: what is typed before has no prompt."""
        self._terminal.wait(lambda screen: PROMPT.match(screen.rstrip()), "the shell's first prompt")
        self.run(f"cd {self.tree}")

    def close(self) -> None:
        self._terminal.close()
        self.lab.close()

    def type(self, line: str) -> None:
        """Type a line and press enter."""
        self._terminal.type(line)

    def press(self, *keys: str) -> None:
        self._terminal.press(*keys)

    def wait(self, pattern: str, what: str) -> str:
        """Return the screen once it has the pattern."""
        found = re.compile(pattern)
        return self._terminal.wait(found.search, what, TIMEOUT)

    def wait_prompt(self, what: str, answers: dict[str, str] | None = None) -> tuple[int, str]:
        """Wait until the command has ended; return its exit code and output.

        ``answers``: what is typed when the last line ends with the key.
        """
        pending = dict(answers or {})

        def ended(screen: str) -> re.Match[str] | None:
            last = next((line for line in reversed(screen.splitlines()) if line.strip()), "").rstrip()
            for question, answer in list(pending.items()):
                if last.endswith(question):
                    del pending[question]
                    self.type(answer)
            found = PROMPT.match(last)
            return found if found and int(found[2]) > self._number else None

        screen = self._terminal.wait(ended, what, TIMEOUT)
        found = ended(screen)
        assert found is not None
        lines = self._terminal.history.rstrip().splitlines()
        begin = max(index for index, line in enumerate(lines) if re.match(rf"\[\d+\] {self._number}> ", line))
        self._number = int(found[2])
        return int(found[1]), "\n".join(lines[begin + 1 : -1])

    def run(self, line: str, code: int = 0, answers: dict[str, str] | None = None) -> str:
        """Type a command, wait for its end, check its exit code and return its output."""
        self.type(line)
        found, output = self.wait_prompt(line, answers)
        assert found == code, f"{line}: exit code {found}\n{output}"
        return output

    def edit_fleet(self) -> None:
        """Write the tutorial's machines into the file that --init has written."""
        file = self.home / ".config/midstream/fleet.yaml"
        written = file.read_text()
        assert re.search(r"^  lab:", written, re.MULTILINE), written
        assert re.search(r"^  rented:", written, re.MULTILINE), written
        servers = self.lab.servers
        fleet = self.lab.fleet_file(
            lab=servers["lab"].config, rented=servers["rented"].config, here=self.lab.local("here", devices=4)
        )
        shutil.copy(fleet, file)


def _copy_repository(tree: Path) -> None:
    """Copy the tracked files; unless packages are downloaded, with an environment that is up to date."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, check=True, capture_output=True).stdout
    for name in names.decode().split("\0"):
        if name and (REPOSITORY / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, tree / name)
    if not DOWNLOADS:
        (tree / ".venv").mkdir()
        (tree / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
        (tree / ".venv" / ".installed").touch()


def block_of(page: Path, command: str) -> Block:
    """Return the page's block whose first line begins with ``command``."""
    return next(block for block in blocks(page) if block.language == "sh" and block.text.startswith(command))


def command_lines(block: Block) -> list[str]:
    """Return the commands of a block, without their comments."""
    return [line.partition(" #")[0].rstrip() for line in block.text.splitlines()]


@pytest.fixture
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    made = User(tmp_path_factory.mktemp("hour"))
    try:
        made.enter_tree()
        yield made
    finally:
        made.close()


def test_added_machines_are_named_and_missing_data_is_refused(user: User) -> None:
    """The cheap part: no engine starts."""
    demo = user.run("make --dry-run demo")
    assert ".venv/bin/midstream --demo" in demo
    assert "dev.txt" not in demo, "the demo does not install what development needs"
    for line in command_lines(block_of(TUTORIAL, "export PATH")):
        assert "exit" not in (shown := user.run(line)), shown
    assert str(user.home) in user.run(command_lines(block_of(TUTORIAL, "midstream --init"))[0])
    user.edit_fleet()
    status = user.run(command_lines(block_of(TUTORIAL, "midstream --status"))[0])
    assert re.search(r"^lab +live", status, re.MULTILINE), status
    assert re.search(r"^rented +live", status, re.MULTILINE), status
    assert "`configs/gpt2_small.yaml` trains on your text and needs your `tokenizer.json`" in TUTORIAL.read_text()
    refused = user.run("cd / && midstream --launch configs/gpt2_small.yaml --on lab --run-id webtext", code=2)
    assert refused.startswith("midstream: data.tokenizer on lab: "), refused
    assert not user.lab.servers["lab"].root.exists(), "nothing is installed"
    assert "no run 'webtext'" in user.run("midstream --log webtext", code=2)


@pytest.mark.slow  # two migrations
@pytest.mark.timeout(7200)
def test_first_hour_leads_from_the_readme_to_two_certificates(user: User) -> None:
    demo(user)
    for line in command_lines(block_of(TUTORIAL, "export PATH")):
        user.run(line)
    for block in blocks(TUTORIAL):
        if block.language != "sh" or block.not_run:
            continue
        for line in command_lines(block):
            tutorial_step(user, line)


def demo(user: User) -> None:
    """Type the README's first command, and press what the tutorial says."""
    [command] = command_lines(block_of(README, "make demo"))
    user.type(command)
    user.wait(r"Demo: press m to migrate this run", "the line that says what to press")
    screen = user.wait(r"step ([2-9]|\d\d+|\d+,\d+)/", "two steps")
    assert re.search("[⠁-⣿]", screen), screen
    user.press("m")
    user.wait(r"(?s)> large +4×cpu.*takes +(about|at least)", "the plan for large")
    user.press("Enter")
    user.wait(r"Ready\.", "the preflight")
    user.press("Enter")
    user.wait(r"type demo and press enter", "the question")
    user.type("demo")
    user.wait(r"certified", "the certificate")
    user.press("q")
    screen = user.wait(r"finish it, then end the demo|\[0\] \d+> ", "the end of the demo")
    if "finish it" in screen:  # the healthy steps are not done
        user.press("f")
    code, output = user.wait_prompt("the end of the demo")
    assert code == 0, output


def tutorial_step(user: User, line: str) -> None:
    """Type a command of the tutorial; check what the text says about it."""
    output = user.run(line, answers={"[y/N]": "y"})
    if "--init" in line:
        user.edit_fleet()
    elif "--launch" in line:
        assert "webtext on lab, attempt 1: training" in output
    elif "--dry-run" in line:
        assert re.search(r"to +rented", output)
        assert "certificate: valid" not in output
    elif "--migrate" in line:
        assert "certificate: valid" in output
    elif "--metrics" in line:
        assert '"train/loss"' in output
    elif "--stop" in line:
        assert "webtext stopped at step" in output
