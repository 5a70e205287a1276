"""Containers of podman: an image made of an almost empty root, into which tests mount this machine's programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from midstream.fleet.container_config import ContainerConfig
from support.paths import REPOSITORY

IMAGE = "localhost/midstream-lab"
LINKS = ("bin", "lib", "lib64", "sbin")  # to the same below /usr
DIRECTORIES = ("usr", "etc", "tmp", "proc", "sys", "dev", "run", "var/tmp", "root")


def program_mounts() -> list[str]:
    """Return the directories that the interpreter of the tests needs, read-only."""
    repository = str(REPOSITORY)
    found = ["/usr", os.path.realpath(sys.base_prefix), repository]
    return [f"{each}:{each}:ro" for each in found if each == "/usr" or not each.startswith("/usr/")]


@dataclass(frozen=True)
class Podman:
    """Storage and settings of podman. ``environment`` is what its client needs."""

    directory: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            "CONTAINERS_CONF": str(self.directory / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.directory / "storage.conf"),
        }

    @property
    def container(self) -> ContainerConfig:
        """An entry of the fleet file whose containers have this machine's programs."""
        return ContainerConfig(IMAGE, "podman", program_mounts())

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **self.environment}
        return subprocess.run(["podman", *argv], env=env, capture_output=True, text=True, timeout=120)

    def running(self) -> list[str]:
        """Return the ids of the containers that run."""
        return self.run("ps", "--quiet").stdout.split()

    def prepare(self) -> None:
        """Write the settings, and import the image. Skips the test where no container starts here."""
        (self.directory / "storage.conf").write_text(
            f'[storage]\ndriver = "vfs"\nrunroot = "{self.directory}/run"\ngraphroot = "{self.directory}/store"\n'
        )
        # Without CAP_SYS_RESOURCE no container may have higher limits than this process.
        runtime = next((name for name in ("runc", "crun") if shutil.which(name)), "runc")
        (self.directory / "containers.conf").write_text(
            '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4000:4000"]\n'
            f'[engine]\nruntime = "{runtime}"\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\n'
        )
        archive = self.directory / "root.tar"
        with tarfile.open(archive, "w") as tar:
            for name in DIRECTORIES:
                entry = tarfile.TarInfo(name)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755
                tar.addfile(entry)
            for name in LINKS:
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
                tar.addfile(entry)
        done = self.run("import", str(archive), IMAGE)
        if done.returncode == 0:
            done = self.run("run", "--rm", "--network=host", "--pid=host", "--volume=/usr:/usr:ro", IMAGE, "true")
        if done.returncode:
            words = done.stderr.strip().splitlines()
            pytest.skip(f"podman starts no container here: {words[-1] if words else done.returncode}")


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """Podman with an image that has no programs of its own."""
    if not shutil.which("podman"):
        pytest.skip("no podman: apt-get install podman runc")
    made = Podman(tmp_path_factory.mktemp("podman"))
    made.prepare()
    yield made
    if ids := made.running():
        made.run("kill", *ids)
