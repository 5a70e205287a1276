"""Environments from locks of conda, created on a host from a channel on loopback."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from midstream.errors import Exit, RemoteError
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.local_host import LocalHost
from midstream.install import conda_environment
from midstream.install.conda_environment import build_conda_environment
from midstream.install.environment import Environment
from midstream.install.errors import LaunchError
from midstream.install.reporter import SparseReporter
from midstream.trainers import conda_lock
from midstream_host.machine import conda_environments
from midstream_host.machine.conda_environments import CondaTool, own_platform
from simulators import conda_tool
from support.conda_channel import PACKAGE, VERSION, Channel, python_channel
from support.wheels import PACKAGE as WHEEL
from support.wheels import uv_works, write_wheel

pytestmark = pytest.mark.drawn

CODE = f"import {PACKAGE}, sys; print({PACKAGE}.VALUE, sys.prefix)"


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[Channel]:
    with python_channel(tmp_path / "channel") as made:
        yield made


def tool_in(folder: Path, name: str = "micromamba", fault: str = "") -> str:
    """Write a tool. Return a PATH that begins with it."""
    conda_tool.install(folder, name, fault)
    return f"{folder}:{os.environ['PATH']}"


@pytest.fixture
def config(tmp_path: Path) -> LocalHostConfig:
    return LocalHostConfig(root=str(tmp_path / "root"), env={"PATH": tool_in(tmp_path / "tools")})


def create(config: LocalHostConfig, text: str, messages: list[str] | None = None) -> Environment:
    lists = conda_lock.lists_of(text)
    assert lists is not None
    report = SparseReporter([].append if messages is None else messages.append, verbose=True)
    with closing(LocalHost("here", config)) as host:
        return build_conda_environment(host, config, lists, report)


def left_of(config: LocalHostConfig) -> list[str]:
    """Return what is in the folder of environments, but for locks."""
    folder = Path(config.root, "envs")
    return sorted(each.name for each in folder.iterdir() if each.suffix != ".lock") if folder.exists() else []


@pytest.mark.parametrize("algorithm", ["sha256", "md5"])
def test_environment_of_an_explicit_list_is_created_once(
    config: LocalHostConfig, channel: Channel, algorithm: str
) -> None:
    made = create(config, channel.explicit(algorithm))
    assert made.how == f"created from the lock of conda with micromamba: 2 packages for {own_platform()}"
    done = subprocess.run([made.python, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["42", str(Path(made.python).parents[1])]
    assert left_of(config) == [Path(made.python).parents[1].name], "downloads are left"
    requested = len(channel.requested)
    assert create(config, channel.explicit(algorithm)) == made
    assert len(channel.requested) == requested == 2


@pytest.mark.slow
def test_packages_of_pip_are_installed_by_their_hashes(
    config: LocalHostConfig, channel: Channel, tmp_path: Path
) -> None:
    channel.add_pip()
    write_wheel(channel.directory / "wheels")
    [wheel] = (channel.directory / "wheels").iterdir()
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    row = (WHEEL, f"{channel.address}/wheels/{wheel.name}", digest)
    made = create(config, channel.unified([row]))
    code = f"import {WHEEL}; print({WHEEL}.VALUE)"
    assert subprocess.run([made.python, "-c", code], capture_output=True, text=True, check=True).stdout == "42\n"
    wrong = (row[0], row[1], "0" * 64)
    with pytest.raises(LaunchError, match=r"(?i)environment of conda cannot be created: .*hash"):
        create(config, channel.unified([wrong]))
    assert len(left_of(config)) == 1


@pytest.mark.skipif(not uv_works(), reason="no uv: pip install uv")
def test_uv_installs_packages_of_pip_where_the_lock_has_no_pip(config: LocalHostConfig, channel: Channel) -> None:
    write_wheel(channel.directory / "wheels")
    [wheel] = (channel.directory / "wheels").iterdir()
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    made = create(config, channel.unified([(WHEEL, f"{channel.address}/wheels/{wheel.name}", digest)]))
    code = f"import {WHEEL}; print({WHEEL}.VALUE)"
    assert subprocess.run([made.python, "-c", code], capture_output=True, text=True, check=True).stdout == "42\n"


def test_package_with_another_hash_is_refused_by_the_tool(config: LocalHostConfig, channel: Channel) -> None:
    text = channel.explicit()
    digest = channel.digest(channel.packages[-1])
    with pytest.raises(LaunchError, match="ChecksumMismatchError") as raised:
        create(config, text.replace(digest, "0" * 64))
    assert "\n" not in str(raised.value)
    assert "environment: {python: PREFIX/bin/python}" in raised.value.hint
    assert left_of(config) == []


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ("ignores hashes", f"{PACKAGE}-2.0-0.tar.bz2 is with another hash installed"),
        ("leaves one out", f"{PACKAGE}-2.0-0.tar.bz2 is not installed"),
        ("adds one", "x-1-0.conda is installed, which the lock does not name"),
    ],
)
def test_what_a_tool_installs_is_compared_with_the_lock(
    config: LocalHostConfig, channel: Channel, tmp_path: Path, fault: str, what: str
) -> None:
    config = replace(config, env={"PATH": tool_in(tmp_path / "faulty", fault=fault)})
    text = channel.explicit()
    if fault == "ignores hashes":
        text = text.replace(channel.digest(channel.packages[-1]), "0" * 64)
    with pytest.raises(LaunchError, match=what):
        create(config, text)
    assert left_of(config) == []


def test_missing_package_ends_in_one_line(config: LocalHostConfig, channel: Channel) -> None:
    (channel.directory / channel.packages[-1]).unlink()
    channel.packages, kept = channel.packages[:1], channel.packages[-1]
    text = channel.explicit() + f"{channel.address}/{kept}#{'0' * 64}\n"
    with pytest.raises(LaunchError, match="404") as raised:
        create(config, text)
    assert "\n" not in str(raised.value)
    assert left_of(config) == []


def test_lock_of_another_platform_is_refused_first(config: LocalHostConfig, channel: Channel) -> None:
    text = channel.explicit().replace(own_platform(), "linux-riscv64")
    with pytest.raises(
        LaunchError, match=f"here is {own_platform()}, the lock of conda is for linux-riscv64"
    ) as raised:
        create(config, text)
    assert raised.value.code == Exit.REFUSED
    assert f"conda-lock lock --platform {own_platform()}" in raised.value.hint
    assert not Path(config.root).exists()
    assert channel.requested == []


def test_secrets_of_a_channel_are_in_no_message_and_no_file(
    config: LocalHostConfig, channel: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "tk-0123456789abcdef"
    text = channel.explicit(prefix="/t/$CHANNEL_TOKEN")
    monkeypatch.setenv("CHANNEL_TOKEN", "tk-of-the-host")  # a lock names no other variable of a host
    with pytest.raises(
        LaunchError, match=r"the lock's channel needs \$CHANNEL_TOKEN, which is not in env: of this host"
    ):
        create(config, text)
    assert left_of(config) == []
    messages: list[str] = []
    failing = {"PATH": tool_in(tmp_path / "failing", fault="prints the address"), "CHANNEL_TOKEN": secret}
    with pytest.raises(LaunchError, match=r"403 FORBIDDEN for url <http://127.0.0.1:\d+/t/\*\*\*/") as raised:
        create(replace(config, env=failing), text, messages)
    messages.append(str(raised.value))
    made = create(replace(config, env={**config.env, "CHANNEL_TOKEN": secret}), text, messages)
    assert any(f"/t/{secret}/" in path for path in channel.requested)
    assert messages
    assert secret not in "\n".join(messages)
    for path in Path(config.root).rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert secret.encode() not in path.read_bytes(), path
    records_of_tool = (Path(made.python).parents[1] / "conda-meta").glob("*.json")
    assert all("/t/$CHANNEL_TOKEN/" in path.read_text() for path in records_of_tool)


def test_value_that_is_no_part_of_an_address_is_refused(config: LocalHostConfig, channel: Channel) -> None:
    given = replace(config, env={**config.env, "CHANNEL_TOKEN": "x\nfile:///etc/passwd"})
    with pytest.raises(LaunchError, match=r"\$CHANNEL_TOKEN, which is no part of an address") as raised:
        create(given, channel.explicit(prefix="/t/$CHANNEL_TOKEN"))
    assert "passwd" not in str(raised.value)


def test_downloads_of_a_build_are_private(config: LocalHostConfig, channel: Channel, tmp_path: Path) -> None:
    folder, modes = Path(config.root, "envs"), list[int]()
    original = channel.requested

    class Watched(list[str]):
        def append(self, item: str) -> None:
            modes.extend(stat.S_IMODE(each.stat().st_mode) for each in folder.glob(".*.work"))
            original.append(item)

    channel.requested = Watched()
    create(config, channel.explicit())
    assert set(modes) == {0o700}


def test_killed_creation_is_repeated(config: LocalHostConfig, channel: Channel) -> None:
    made = create(config, channel.explicit())
    directory = Path(made.python).parents[1]
    (directory / ".complete.json").unlink()
    (directory / f"lib/python{VERSION}/site-packages/{PACKAGE}/__init__.py").unlink()
    work = directory.with_name(f".{directory.name}.work")
    (work / "packages").mkdir(parents=True)
    assert create(config, channel.explicit()) == made
    assert subprocess.run([made.python, "-c", CODE]).returncode == 0
    assert not work.exists()


def test_concurrent_launches_create_one_environment(config: LocalHostConfig, channel: Channel) -> None:
    made: list[Environment] = []
    threads = [threading.Thread(target=lambda: made.append(create(config, channel.explicit()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(made) == 2
    assert made[0] == made[1]
    assert len(channel.requested) == 2


def test_lock_without_an_interpreter_is_refused(config: LocalHostConfig, channel: Channel) -> None:
    channel.packages = channel.packages[1:]
    with pytest.raises(LaunchError, match="no package of the lock has bin/python"):
        create(config, channel.explicit())
    assert left_of(config) == []


def test_tools_are_taken_in_order_and_shims_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "tools"
    found = find_in(folder)
    assert found.platform == own_platform()
    assert found.path is None or not found.path.startswith(str(tmp_path))
    conda_tool.install(folder, "conda")
    shim = folder / "micromamba"
    shim.write_text("#!/bin/sh\necho not installed >&2\nexit 1\n")
    shim.chmod(0o755)
    assert find_in(folder) == CondaTool(own_platform(), "conda", str(folder / "conda"), "2.3.1")
    conda_tool.install(folder, "mamba")
    assert find_in(folder).kind == "mamba"


def find_in(folder: Path) -> CondaTool:
    return conda_environments.find({"PATH": f"{folder}:/bin:/usr/bin"})


@pytest.mark.slow
def test_host_without_tool_and_network_gets_a_hint(
    channel: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conda_environment, "find_tool", lambda *_: CondaTool(own_platform()))
    env = {"PIP_NO_INDEX": "1", "UV_NO_INDEX": "1", "UV_OFFLINE": "1", "PIP_FIND_LINKS": str(tmp_path)}
    config = LocalHostConfig(root=str(tmp_path / "root"), env=env)
    with pytest.raises(
        LaunchError, match="has no micromamba, mamba, conda, and py-rattler cannot be installed"
    ) as raised:
        create(config, channel.explicit())
    assert "install micromamba there" in raised.value.hint


@pytest.mark.parametrize(
    "answer",
    [CondaTool("linux-64\x1b[2J"), CondaTool("../x"), CondaTool("linux-64", "sh", "/bin/sh", "1.0"),
     CondaTool("linux-64", "conda", "/bin/conda", None)],
)  # fmt: skip
def test_impossible_tool_of_a_host_is_refused(answer: CondaTool) -> None:
    class Bad:
        name = "bad"

        def call(self, *_: object, **__: object) -> object:
            return lambda **_: answer

    with pytest.raises(RemoteError, match="an unknown tool or platform"):
        conda_environment.find_tool(Bad(), LocalHostConfig(root="/x"))  # type: ignore[arg-type]
