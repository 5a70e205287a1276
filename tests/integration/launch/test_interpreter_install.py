"""Pythons and packages installed on hosts that lack them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socketserver
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from midstream.hosts.host import Host
from midstream.hosts.host_pool import open_host
from midstream.install import environment as environments
from midstream.install import interpreter
from midstream.install.environment import prepare_environment
from midstream.install.errors import LaunchError
from midstream.install.interpreter import bring_python, python_build, python_tarball
from midstream_host.machine import checks
from midstream_host.machine import environments as remote_environments
from simulators.sshd import Lab, SshServer, environment
from support.wheels import PACKAGE, uv_works, write_wheel

pytestmark = [pytest.mark.drawn, pytest.mark.system]
NEEDED = ("bash", "sh", "cat", "mkdir", "rm", "mv", "tar", "gzip", "uname", "head", "ldd", "test", "env", "ls", "wc")
LEFT_OUT = {"test", "idlelib", "tkinter", "lib2to3", "site-packages", "__pycache__", "turtledemo", "pydoc_data"}


@pytest.fixture(scope="module")
def tarball(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pack this interpreter as python-build-standalone does, under ``python/``."""
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
    """Restart the server with a PATH of these programs alone."""
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
    """Connect to a host whose PATH has a shell and a few tools: no Python, no uv."""
    monkeypatch.setenv("MIDSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("UV_PYTHON_INSTALL_MIRROR", raising=False)
    server = with_tools(lab.host("bare", python=None), NEEDED)
    host = open_host("bare", server.config)
    host.connect()
    if host.remote_python:
        pytest.skip(f"the login shell finds {host.remote_python} whatever its PATH is")
    yield server, host
    host.close()


def test_python_is_installed_on_host_without_python(
    bare: tuple[SshServer, Host], pins: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, host = bare
    monkeypatch.setattr(interpreter, "shipped", lambda _: pins_file(tmp_path, pins))
    messages: list[str] = []
    found = environments.find_python(host, server.config, messages.append)
    installed = f"{host.root}/pythons/midstream-9.9.9-"
    assert host.remote_python.startswith(installed)
    assert any("Python 9.9.9 is sent" in line for line in messages)
    assert host.call(checks.facts)(root=host.root).executable.startswith(installed), "our functions run with it"
    messages.clear()
    assert environments.find_python(host, server.config, messages.append) == found
    assert messages == [], "it is installed once"


def pins_file(directory: Path, pins: dict[str, Any]) -> Path:
    path = directory / "python.json"
    path.write_text(json.dumps(pins))
    return path


def test_old_python_of_host_is_replaced_by_installed_one(
    lab: Lab, pins: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host has Python 3.10 alone: an environment is built with a newer one."""
    monkeypatch.setenv("MIDSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(interpreter, "shipped", lambda _: pins_file(tmp_path, pins))
    monkeypatch.setattr(interpreter, "_LOOK", "uname -m; echo glibc; echo")  # as where there is no uv
    lock = write_wheel(tmp_path / "wheels")
    server = lab.host("old", python=None)
    config = replace(server.config, wheelhouse=str(tmp_path / "wheels"))
    host = open_host("old", config)
    host.connect()
    call = type(host).call

    def old(self: Any, function: Any, /, **options: Any) -> Any:
        remote = call(self, function, **options)

        def find(**arguments: Any) -> Any:
            if not arguments.get("also"):
                return remote_environments.Interpreters(None, None, None, None, "3.10.12")
            return replace(remote(**arguments), python=arguments["also"][0])

        return find if function is remote_environments.find else remote

    monkeypatch.setattr(type(host), "call", old)
    made = prepare_environment(host, config, lock=lock, modules=[PACKAGE])
    base = json.loads(Path(made.python).parents[1].joinpath(".complete.json").read_text())["base"]
    assert base.startswith(f"{host.root}/pythons/midstream-9.9.9-")
    done = subprocess.run([made.python, "-c", f"import {PACKAGE} as p; print(p.VALUE)"], capture_output=True, text=True)
    assert done.stdout == "42\n"
    assert (Path(host.root) / "wheels").is_dir(), "packages came over the connection"
    host.close()


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (
            lambda pins: pins.update(mirror="file:///no/such"),
            r"file:///no/such/.* cannot be fetched: .*put it at ",
        ),
        (lambda pins: pins["builds"][os.uname().machine].update(sha256="0" * 64), "is not the file that is pinned"),
        (lambda pins: pins.update(builds={}), "there is no Python build for "),
    ],
)
def test_unavailable_python_build_is_one_line(
    bare: tuple[SshServer, Host],
    pins: dict[str, Any],
    spoil: Callable[[dict[str, Any]], None],
    expected: str,
    tmp_path: Path,
) -> None:
    spoil(pins)
    with pytest.raises(LaunchError, match=expected) as caught:
        bring_python(bare[1], {}, pins=pins)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("cache/pythons/*")), "no partial file is left"


class _OtherProtocol(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.recv(1)
        self.request.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")


def test_mirror_that_does_not_speak_http_is_one_line(
    pins: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIDSTREAM_CACHE", str(tmp_path / "cache"))
    with socketserver.TCPServer(("127.0.0.1", 0), _OtherProtocol) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        mirror = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("UV_PYTHON_INSTALL_MIRROR", mirror)
        with pytest.raises(LaunchError, match=rf"{mirror}/2026.* cannot be fetched: SSH-2.0-OpenSSH_9.2") as caught:
            python_tarball(python_build(os.uname().machine, pins))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("cache/pythons/*")), "no partial file is left"


def test_host_with_pip_alone_gets_wheels_from_operator(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither machine has uv; the operator's pip alone reaches an index."""
    index, wheelhouse = tmp_path / "index", tmp_path / "wheelhouse"
    lock = write_wheel(index)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    server = with_tools(lab.host("plain", python=None), NEEDED)
    (server.directory / "bin" / "python3").symlink_to(os.path.realpath(sys.executable))
    config = replace(server.config, wheelhouse=str(wheelhouse), env={"PIP_INDEX_URL": "http://127.0.0.1:9/nothing"})
    host = open_host("plain", config)
    try:
        host.connect()
        found = host.call(remote_environments.find)(minimum=list(environments.MINIMUM))
        if found.uv or not found.python:
            pytest.skip(f"the login shell finds uv {found.uv} and Python {found.newest} whatever its PATH is")
        messages: list[str] = []
        made = prepare_environment(host, config, messages.append, lock=lock, modules=[PACKAGE])
        assert made.how == "built from the lock with venv and pip"
        assert [path.name for path in wheelhouse.glob("*.whl")] == [path.name for path in index.glob("*.whl")]
        assert any("1 wheels are sent" in line for line in messages)
        assert host.run([made.python, "-c", f"import {PACKAGE} as p; print(p.VALUE)"]).stdout == b"42\n"
        messages.clear()
        assert prepare_environment(host, config, messages.append, lock=lock, modules=[PACKAGE]) == made
        assert messages == [], "nothing is collected, sent or built again"
    finally:
        host.close()


@pytest.mark.skipif(not uv_works(), reason="uv: pip install uv")
def test_uv_on_host_installs_python_from_file_mirror(lab: Lab, tarball: Path, tmp_path: Path) -> None:
    """The test replaces uv's list of builds, which names files on the network."""
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
    messages: list[str] = []
    builds = {machine: {"file": "x/y.tar.gz", "sha256": "0" * 64}}
    pins = {"version": version, "mirror": "file:///nowhere", "builds": builds}
    found = bring_python(host, env, messages.append, pins)
    assert found == f"{host.root}/pythons/cpython-{version}-linux-{machine}-gnu/bin/python3", messages
    assert host.run([found, "-c", "print(6 * 7)"]).stdout == b"42\n"
    host.close()
