"""What is brought to a host that lacks it: a Python, packages; on hosts without network, over the one connection."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from midstream.hosts.host import Host
from midstream.hosts.host_pool import open_host
from midstream.launch import environment as environments
from midstream.launch import interpreter
from midstream.launch.environment import prepare_environment
from midstream.launch.errors import LaunchError
from midstream.launch.interpreter import bring_python
from simulators.sshd import Lab, SshServer, environment
from support.parcels import PACKAGE, uv_works, write_wheel

pytestmark = pytest.mark.system
NEEDED = ("bash", "sh", "cat", "mkdir", "rm", "mv", "tar", "gzip", "uname", "head", "ldd", "test", "env", "ls", "wc")
LEFT_OUT = {"test", "idlelib", "tkinter", "lib2to3", "site-packages", "__pycache__", "turtledemo", "pydoc_data"}


@pytest.fixture(scope="module")
def tarball(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This interpreter as python-build-standalone packs one: everything under ``python/``."""
    base, version = Path(sys.base_prefix), f"python{sys.version_info[0]}.{sys.version_info[1]}"
    executable = Path(os.path.realpath(sys.executable))
    path = tmp_path_factory.mktemp("mirror") / "20260101" / "cpython-9.9.9+20260101-test-install_only.tar.gz"
    path.parent.mkdir()

    def keep(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        parts = Path(member.name).parts
        left = LEFT_OUT & set(parts) or any(part.startswith("config-") for part in parts)
        return None if left or member.name.endswith(".a") else member

    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        archive.add(base / "lib" / version, f"python/lib/{version}", filter=keep)
        archive.add(executable, f"python/bin/{version}")
        link = tarfile.TarInfo("python/bin/python3")
        link.type, link.linkname = tarfile.SYMTYPE, version
        archive.addfile(link)
    return path


@pytest.fixture
def pins(tarball: Path) -> dict[str, Any]:
    digest = hashlib.sha256(tarball.read_bytes()).hexdigest()
    build = {"file": f"20260101/{tarball.name}", "sha256": digest}
    machine = os.uname().machine
    return {"version": "9.9.9", "mirror": tarball.parents[1].as_uri(), "builds": {machine: build}}


def with_tools(server: SshServer, names: Sequence[str]) -> SshServer:
    """The server, whose PATH holds these programs alone."""
    tools = server.directory / "bin"
    tools.mkdir()
    for name in names:
        found = shutil.which(name)
        if found:
            (tools / name).symlink_to(found)
    server.stop()
    config = server.directory / "sshd_config"
    config.write_text(environment(PATH=tools, HOME=server.directory) + config.read_text())
    server.start()
    return server


@pytest.fixture
def bare(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SshServer, Host]]:
    """A host whose PATH holds a shell and a few tools: no Python at all, no uv."""
    monkeypatch.setenv("MIDSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("UV_PYTHON_INSTALL_MIRROR", raising=False)
    server = with_tools(lab.host("bare", python=None), NEEDED)
    host = open_host("bare", server.config)
    host.connect()
    if host.far_python:
        pytest.skip(f"the login shell finds {host.far_python} whatever its PATH is")
    yield server, host
    host.close()


def test_a_python_is_brought_to_a_host_without_any(
    bare: tuple[SshServer, Host], pins: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, host = bare
    monkeypatch.setattr(interpreter, "shipped", lambda name: pins_file(tmp_path, pins))
    said: list[str] = []
    found = environments.find_python(host, server.config, said.append)
    brought = f"{host.root}/pythons/midstream-9.9.9-"
    assert host.far_python.startswith(brought)
    assert any("Python 9.9.9 goes over" in line for line in said)
    assert host.call("machine.checks.facts", root=host.root)["executable"].startswith(brought), (
        "it runs our functions, too"
    )
    said.clear()
    assert environments.find_python(host, server.config, said.append) == found
    assert said == [], "it is brought once"


def pins_file(directory: Path, pins: dict[str, Any]) -> Path:
    path = directory / "python.json"
    path.write_text(json.dumps(pins))
    return path


def test_an_old_python_is_passed_over_for_the_one_that_is_brought(
    lab: Lab, pins: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's own names lead to 3.10 only: a Python is brought, and an environment is built with it."""
    monkeypatch.setenv("MIDSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(interpreter, "shipped", lambda name: pins_file(tmp_path, pins))
    monkeypatch.setattr(interpreter, "_LOOK", "uname -m; echo glibc; echo")  # as where there is no uv
    lock = write_wheel(tmp_path / "wheels")
    server = lab.host("old", python=None)
    config = replace(server.config, wheelhouse=str(tmp_path / "wheels"))
    host = open_host("old", config)
    host.connect()
    call = type(host).call

    def old(self: Any, function: str, /, **arguments: Any) -> Any:
        if function == "machine.environments.find" and not arguments.get("also"):
            return {"uv": None, "python": None, "version": None, "machine": None, "newest": "3.10.12"}
        answer = call(self, function, **arguments)
        if function == "machine.environments.find":  # of those that are older here, nothing is known
            python = arguments["also"][0]
            return {**answer, "python": python}
        return answer

    monkeypatch.setattr(type(host), "call", old)
    made = prepare_environment(host, config, lock=lock, modules=[PACKAGE])
    base = json.loads(Path(made.python).parents[1].joinpath(".complete.json").read_text())["base"]
    assert base.startswith(f"{host.root}/pythons/midstream-9.9.9-")
    done = subprocess.run([made.python, "-c", f"import {PACKAGE} as p; print(p.VALUE)"], capture_output=True, text=True)
    assert done.stdout == "42\n"
    assert (Path(host.root) / "wheels").is_dir(), "packages came over the connection"
    host.close()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda pins: pins.update(mirror="file:///no/such"),
            r"file:///no/such/.* cannot be fetched: .*put it at ",
        ),
        (lambda pins: pins["builds"][os.uname().machine].update(sha256="0" * 64), "is not the file that is pinned"),
        (lambda pins: pins.update(builds={}), "there is no Python build for "),
    ],
)
def test_a_python_that_cannot_be_had_is_one_line(
    bare: tuple[SshServer, Host], pins: dict[str, Any], spoil: Any, said: str, tmp_path: Path
) -> None:
    spoil(pins)
    with pytest.raises(LaunchError, match=said) as caught:
        bring_python(bare[1], {}, pins=pins)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("cache/pythons/*")), "nothing half-fetched is left"


def test_a_host_with_pip_alone_gets_wheels_that_were_collected_with_pip(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No uv on either side. The operator's pip reaches an index (a directory here), the host reaches nothing."""
    index, house = tmp_path / "index", tmp_path / "house"
    lock = write_wheel(index)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    server = with_tools(lab.host("plain", python=None), NEEDED)
    (server.directory / "bin" / "python3").symlink_to(os.path.realpath(sys.executable))
    config = replace(server.config, wheelhouse=str(house), env={"PIP_INDEX_URL": "http://127.0.0.1:9/nothing"})
    host = open_host("plain", config)
    try:
        host.connect()
        found = host.call("machine.environments.find", minimum=list(environments.MINIMUM))
        if found["uv"] or not found["python"]:
            pytest.skip(f"the login shell finds uv {found['uv']} and Python {found['newest']} whatever its PATH is")
        said: list[str] = []
        made = prepare_environment(host, config, said.append, lock=lock, modules=[PACKAGE])
        assert made.how == "built from the lock with venv and pip"
        assert [path.name for path in house.glob("*.whl")] == [path.name for path in index.glob("*.whl")]
        assert any("1 wheels go over" in line for line in said)
        assert host.run([made.python, "-c", f"import {PACKAGE} as p; print(p.VALUE)"]).stdout == b"42\n"
        said.clear()
        assert prepare_environment(host, config, said.append, lock=lock, modules=[PACKAGE]) == made
        assert said == [], "nothing is collected, sent or built again"
    finally:
        host.close()


@pytest.mark.skipif(not uv_works(), reason="uv: pip install uv")
def test_uv_on_the_host_installs_a_python_from_a_file_mirror(lab: Lab, tarball: Path, tmp_path: Path) -> None:
    """uv is given a list of builds of our own: those that it knows by heart lie on the network."""
    machine = os.uname().machine
    version = ".".join(map(str, sys.version_info[:3]))
    mirror = tmp_path / "mirror"
    target = mirror / "20260101" / f"cpython-{version}+20260101-{machine}-unknown-linux-gnu-install_only.tar.gz"
    target.parent.mkdir(parents=True)
    shutil.copy(tarball, target)
    digest = hashlib.sha256(target.read_bytes()).hexdigest()
    major, minor, patch = sys.version_info[:3]
    release = "https://github.com/astral-sh/python-build-standalone/releases/download"
    known = {
        f"cpython-{version}-linux-{machine}-gnu": {
            "name": "cpython", "arch": {"family": machine, "variant": None}, "os": "linux", "libc": "gnu",
            "major": major, "minor": minor, "patch": patch, "prerelease": "", "variant": None, "build": "20260101",
            "url": f"{release}/20260101/{target.name.replace('+', '%2B')}", "sha256": digest,
        }
    }  # fmt: skip
    (tmp_path / "known.json").write_text(json.dumps(known))
    server = lab.host("withuv")
    host = open_host("withuv", server.config)
    host.connect()
    env = {
        "UV_PYTHON_INSTALL_MIRROR": mirror.as_uri(),
        "UV_PYTHON_DOWNLOADS_JSON_URL": str(tmp_path / "known.json"),
        "UV_CACHE_DIR": str(tmp_path / "uv-cache"),
    }
    said: list[str] = []
    builds = {machine: {"file": "x/y.tar.gz", "sha256": "0" * 64}}
    pins = {"version": version, "mirror": "file:///nowhere", "builds": builds}
    found = bring_python(host, env, said.append, pins)
    assert found == f"{host.root}/pythons/cpython-{version}-linux-{machine}-gnu/bin/python3", said
    assert host.run([found, "-c", "print(6 * 7)"]).stdout == b"42\n"
    host.close()
