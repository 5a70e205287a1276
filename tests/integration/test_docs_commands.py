"""Command blocks of the documentation, run from the pages' text on loopback hosts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulators.sshd import SSHD, Lab
from support.doc_pages import Block, blocks, pages
from support.paths import REPOSITORY

pytestmark = pytest.mark.drawn

TUTORIAL = "docs/getting-started.md"
BLOCK_TIMEOUT = 900.0  # seconds: a migration with 100 healthy steps on two busy cores


class World:
    """Machines of the tutorial and a home directory.

    ``lab`` and ``rented`` are behind an SSH server each; ``here`` is this machine.
    """

    def __init__(self, directory: Path) -> None:
        self.lab = Lab(directory / "lab")
        home = directory / "home"
        (home / ".ssh").mkdir(parents=True)
        servers = [self.lab.host("lab", devices=2), self.lab.host("rented", devices=4)]
        text = "".join((server.directory / "ssh_config").read_text() for server in servers)
        (home / ".ssh" / "config").write_text(text)
        here = self.lab.local("here", devices=4)
        fleet = self.lab.fleet_file(lab=servers[0].config, rented=servers[1].config, here=here)
        self._environment = {
            **os.environ,
            "HOME": str(home),
            "MIDSTREAM_STATE": str(directory / "state"),
            "MIDSTREAM_FLEET": str(fleet),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    def run(self, block: Block) -> str:
        """Run a block with a shell that stops at the first command that fails."""
        environment = {**self._environment, **dict(block.environment)}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=REPOSITORY,
            env={name: value for name, value in environment.items() if value},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BLOCK_TIMEOUT,
        )
        assert done.returncode == 0, f"{block}: exit status {done.returncode}\n{block.text}\n{done.stdout[-4000:]}"
        return done.stdout


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    if not SSHD or not shutil.which("ssh-keygen"):
        pytest.skip("no sshd: apt-get install openssh-server")
    made = World(tmp_path_factory.mktemp("docs"))
    try:
        yield made
    finally:
        made.run(Block("teardown", 0, "sh", "midstream --stop webtext || true"))
        made.lab.close()


def runnable(page: str) -> list[Block]:
    return [block for block in blocks(REPOSITORY / page) if block.language == "sh" and not block.not_run]


def tutorial(command: str) -> Block:
    """Return the tutorial's block that begins with ``command``."""
    return next(block for block in runnable(TUTORIAL) if block.text.startswith(command))


PAGES = [str(page.relative_to(REPOSITORY)) for page in pages()]
OTHER_PAGES = [page for page in PAGES if page != TUTORIAL and runnable(page)]


@pytest.fixture(scope="module")
def training(world: World) -> World:
    """Launch the tutorial's run on ``lab``."""
    world.run(tutorial("midstream --launch"))
    return world


@pytest.mark.parametrize("page", OTHER_PAGES)
def test_blocks_of_a_guide_run(training: World, page: str) -> None:
    for block in runnable(page):
        assert training.run(block)


@pytest.mark.slow  # a complete migration
@pytest.mark.timeout(3600)
def test_blocks_of_the_tutorial_run(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if not SSHD or not shutil.which("ssh-keygen"):
        pytest.skip("no sshd: apt-get install openssh-server")
    world = World(tmp_path)
    request.addfinalizer(world.lab.close)
    printed = [world.run(block) for block in runnable(TUTORIAL)]
    assert any("certificate: valid" in text for text in printed)
