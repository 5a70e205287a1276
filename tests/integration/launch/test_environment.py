"""The interpreter of the engine: configured, or built from a lock file offline."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.local_host import LocalHost
from midstream.install import environment as environments
from midstream.install import reporter
from midstream.install.disk_space import FILES, UNPACKED, check_space
from midstream.install.environment import Environment, prepare_environment
from midstream.install.errors import LaunchError
from midstream.install.reporter import SparseReporter
from midstream_host.machine import checks
from midstream_host.machine import environments as remote_environments
from simulators.disks import small_disk
from support.wheels import PACKAGE, uv_works, write_wheel

pytestmark = pytest.mark.drawn


@pytest.fixture
def lock(tmp_path: Path) -> str:
    return write_wheel(tmp_path / "wheels")


@pytest.fixture
def config(tmp_path: Path) -> LocalHostConfig:
    """Return a host without network, whose installers use one directory."""
    wheels = str(tmp_path / "wheels")
    env = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": wheels,
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": wheels,
        "UV_OFFLINE": "1",
    }
    return LocalHostConfig(root=str(tmp_path / "root"), env=env)


def prepared(config: LocalHostConfig, report: Callable[[str], None] | None = None, **given: Any) -> Environment:
    with closing(LocalHost("here", config)) as host:
        return prepare_environment(host, config, report, **given)


def build(config: LocalHostConfig, lock: str, messages: list[str] | None = None) -> Environment:
    return prepared(config, messages.append if messages is not None else None, lock=lock, modules=[PACKAGE])


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("uv", marks=[pytest.mark.system, pytest.mark.skipif(not uv_works(), reason="uv: pip install uv")]),
        "venv and pip",
    ],
)
def test_environment_is_built_from_lock_once(
    config: LocalHostConfig, lock: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how != "uv":
        without_uv(monkeypatch)
    monkeypatch.setattr(reporter, "SPARSE_INTERVAL", float("inf"))  # a slow build would report its progress too
    messages: list[str] = []
    made = build(config, lock, messages)
    assert made.how == f"built from the lock with {how}"
    assert messages == ["here: preparing 1 packages"], "the installer's output is left out"
    done = subprocess.run([made.python, "-c", f"import {PACKAGE} as p; print(p.VALUE)"], capture_output=True, text=True)
    assert done.stdout == "42\n"
    messages.clear()
    assert build(config, lock, messages) == made
    assert messages == [], "the second launch finds it"


def without_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make hosts report that they have no uv."""
    call = LocalHost.call

    def lacking(self: LocalHost, function: Any, /, **options: Any) -> Any:
        remote = call(self, function, **options)
        return (
            (lambda **arguments: replace(remote(**arguments), uv=None))
            if function is remote_environments.find
            else remote
        )

    monkeypatch.setattr(LocalHost, "call", lacking)


def test_package_with_wrong_hash_is_refused(config: LocalHostConfig, lock: str, tmp_path: Path) -> None:
    digest = lock.split("sha256:")[1].strip()
    with pytest.raises(LaunchError, match=r"(?i)here: the engine's environment cannot be built: .*hash") as caught:
        build(config, lock.replace(digest, "0" * 64))
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "root" / "envs").glob("[!.]*")), "nothing half-built is left"


def test_killed_build_is_repeated(config: LocalHostConfig, lock: str) -> None:
    made = build(config, lock)
    directory = Path(made.python).parents[1]
    (directory / ".complete.json").unlink()
    shutil.rmtree(next(directory.glob("lib/python*/site-packages")))
    assert build(config, lock) == made


def test_concurrent_launches_build_one_environment(config: LocalHostConfig, lock: str) -> None:
    made: list[Environment] = []
    messages: list[str] = []
    report = SparseReporter(messages.append, verbose=True)
    threads = [
        threading.Thread(target=lambda: made.append(prepared(config, report, lock=lock, modules=[PACKAGE])))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(made) == 2
    assert made[0] == made[1]
    assert sum(("venv" in line and line.split()[1:2] == ["venv"]) or " -m venv " in line for line in messages) == 1


def test_configured_interpreter_is_used_if_it_has_packages(tmp_path: Path) -> None:
    config = LocalHostConfig(root=str(tmp_path), python=sys.executable)
    found = prepared(config, modules=["json", "yaml"])
    assert found == Environment(sys.executable, "named in the fleet file")


@pytest.mark.parametrize(
    ("python", "message"),
    [
        (sys.executable, "cannot import no_such_module, nor_this_one (ModuleNotFoundError: No module named"),
        ("/no/such/python", "command not found"),
    ],
)
def test_unusable_interpreter_is_refused_in_one_line(tmp_path: Path, python: str, message: str) -> None:
    config = LocalHostConfig(root=str(tmp_path), python=python)
    with pytest.raises(LaunchError) as caught:
        prepared(config, modules=["json", "no_such_module", "nor_this_one"])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_old_interpreter_is_refused_with_its_version(tmp_path: Path) -> None:
    old = tmp_path / "python3.8"
    old.write_text('#!/bin/sh\necho \'{"version": [3, 8, 10], "missing": []}\'\n')
    old.chmod(0o755)
    config = LocalHostConfig(root=str(tmp_path), python=str(old))
    with pytest.raises(LaunchError, match=r"is Python 3\.8\.10, the engine needs 3\.11 or newer"):
        prepared(config, modules=["json"])


def test_host_with_old_interpreters_only_lists_them(config: LocalHostConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "MINIMUM", (99, 0))
    monkeypatch.setenv("UV_PYTHON_INSTALL_MIRROR", "file:///no/such/mirror")
    monkeypatch.setenv("MIDSTREAM_CACHE", config.root)
    with pytest.raises(
        LaunchError, match=r"here has only Python 3\.\d+\.\d+, and the engine needs 99\.0 or newer; file:///no"
    ):
        build(config, "")


def test_setup_lines_run_before_interpreter_is_checked(tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "from_the_cluster.py").write_text("")
    config = LocalHostConfig(
        root=str(tmp_path), python=sys.executable, setup=[f"echo hello; export PYTHONPATH={modules}"]
    )
    assert prepared(config, modules=["from_the_cluster"])


@pytest.mark.parametrize(
    ("free", "files", "line"),
    [
        (100_000_000, None, "no space left at /r: 300 MB needed for the engine's packages, 100 MB free"),
        (10**12, 12, f"no space left at /r: {FILES} files .inodes. needed for the engine's packages, 12 free"),
    ],
)
def test_packages_that_do_not_fit_are_refused_before_a_download(free: int, files: int | None, line: str) -> None:
    facts = checks.HostFacts("3.11.2", "/bin/python3", "glibc 2.36", "x86_64", "/r", True, True, free, 0, files)
    with pytest.raises(LaunchError, match=line):
        check_space("here", facts, 300_000_000 // UNPACKED)
    check_space("here", facts, 0)  # the sizes are not known


def test_disk_that_fills_up_is_named_in_one_line(config: LocalHostConfig, lock: str, tmp_path: Path) -> None:
    """The installer's own words were more than a thousand characters, with a hint about package indexes."""
    with small_disk(tmp_path / "small", "1m") as mounted:
        if not mounted:
            pytest.skip("mounting a tmpfs is not permitted here: run as root with CAP_SYS_ADMIN")
        with pytest.raises(LaunchError) as caught:
            build(replace(config, root=str(tmp_path / "small" / "root")), lock)
    built = "here: the engine's environment cannot be built: "
    assert caught.value.message == f"{built}No space left on device at {tmp_path}/small/root: 0 MB free"
    assert "root: in the fleet file" in str(caught.value.hint)
