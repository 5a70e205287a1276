"""The engine's interpreter: one that is named, midstream's own, or one built from a lock file without any network."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from midstream.fleet.fleet import LocalHost
from midstream.hosts.local_host import LocalMachine
from midstream.launch import environment as environments
from midstream.launch.environment import Environment, prepare_environment
from midstream.launch.errors import LaunchError
from support.parcels import PACKAGE, uv_works, write_wheel


@pytest.fixture
def lock(tmp_path: Path) -> str:
    return write_wheel(tmp_path / "wheels")


@pytest.fixture
def config(tmp_path: Path) -> LocalHost:
    """A host without network: its installers look into one directory."""
    wheels = str(tmp_path / "wheels")
    env = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": wheels,
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": wheels,
        "UV_OFFLINE": "1",
    }
    return LocalHost(root=str(tmp_path / "root"), env=env)


def build(config: LocalHost, lock: str, said: list[str] | None = None) -> Environment:
    host = LocalMachine("here", config)
    return prepare_environment(host, config, said.append if said is not None else None, lock=lock, modules=[PACKAGE])


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("uv", marks=[pytest.mark.system, pytest.mark.skipif(not uv_works(), reason="uv: pip install uv")]),
        "venv and pip",
    ],
)
def test_an_environment_is_built_from_the_lock_once(
    config: LocalHost, lock: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how != "uv":
        without_uv(monkeypatch)
    said: list[str] = []
    made = build(config, lock, said)
    assert made.how == f"built from the lock with {how}"
    assert said, "progress is told"
    done = subprocess.run([made.python, "-c", f"import {PACKAGE} as p; print(p.VALUE)"], capture_output=True, text=True)
    assert done.stdout == "42\n"
    said.clear()
    assert build(config, lock, said) == made
    assert said == [], "the second launch finds it"


def without_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a host that has none: the answer to what is there lacks it."""
    call = LocalMachine.call

    def lacking(self: LocalMachine, function: str, /, **arguments: object) -> object:
        answer = call(self, function, **arguments)  # type: ignore[arg-type]
        return {**answer, "uv": None} if function == "machine.environments.find" else answer

    monkeypatch.setattr(LocalMachine, "call", lacking)


def test_a_package_that_is_not_the_locked_one_is_refused(config: LocalHost, lock: str, tmp_path: Path) -> None:
    digest = lock.split("sha256:")[1].strip()
    with pytest.raises(LaunchError, match=r"(?i)here: the engine's environment cannot be built: .*hash") as caught:
        build(config, lock.replace(digest, "0" * 64))
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "root" / "envs").glob("[!.]*")), "nothing half-built is left"


def test_a_build_that_was_killed_is_done_anew(config: LocalHost, lock: str, tmp_path: Path) -> None:
    made = build(config, lock)
    directory = Path(made.python).parents[1]
    (directory / ".complete.json").unlink()
    shutil.rmtree(next(directory.glob("lib/python*/site-packages")))
    assert build(config, lock) == made


def test_two_launches_build_one_environment(config: LocalHost, lock: str) -> None:
    made: list[Environment] = []
    said: list[str] = []
    threads = [threading.Thread(target=lambda: made.append(build(config, lock, said))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(made) == 2
    assert made[0] == made[1]
    assert sum(("venv" in line and line.split()[1:2] == ["venv"]) or " -m venv " in line for line in said) == 1


def test_an_interpreter_that_is_named_is_taken_where_it_has_the_packages(tmp_path: Path) -> None:
    config = LocalHost(root=str(tmp_path), python=sys.executable)
    found = prepare_environment(LocalMachine("here", config), config, modules=["json", "yaml"])
    assert found == Environment(sys.executable, "named in the fleet file")


@pytest.mark.parametrize(
    ("python", "said"),
    [
        (sys.executable, "cannot import no_such_module, nor_this_one (ModuleNotFoundError: No module named"),
        ("/no/such/python", "command not found"),
    ],
)
def test_an_interpreter_that_will_not_do_is_refused_in_one_line(tmp_path: Path, python: str, said: str) -> None:
    config = LocalHost(root=str(tmp_path), python=python)
    with pytest.raises(LaunchError) as caught:
        prepare_environment(LocalMachine("here", config), config, modules=["json", "no_such_module", "nor_this_one"])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_interpreter_that_is_too_old_is_refused_with_its_version(tmp_path: Path) -> None:
    old = tmp_path / "python3.8"
    old.write_text('#!/bin/sh\necho \'{"version": [3, 8, 10], "missing": []}\'\n')
    old.chmod(0o755)
    config = LocalHost(root=str(tmp_path), python=str(old))
    with pytest.raises(LaunchError, match=r"is Python 3\.8\.10, the engine needs 3\.11 or newer"):
        prepare_environment(LocalMachine("here", config), config, modules=["json"])


def test_a_host_with_old_interpreters_only_says_which(config: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "MINIMUM", (99, 0))
    monkeypatch.setenv("UV_PYTHON_INSTALL_MIRROR", "file:///no/such/mirror")
    monkeypatch.setenv("MIDSTREAM_CACHE", config.root)
    with pytest.raises(
        LaunchError, match=r"here has only Python 3\.\d+\.\d+, and the engine needs 99\.0 or newer; file:///no"
    ):
        build(config, "")


def test_setup_lines_come_before_the_interpreter_is_looked_for(tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "from_the_cluster.py").write_text("")
    config = LocalHost(root=str(tmp_path), python=sys.executable, setup=[f"echo hello; export PYTHONPATH={modules}"])
    assert prepare_environment(LocalMachine("here", config), config, modules=["from_the_cluster"])
