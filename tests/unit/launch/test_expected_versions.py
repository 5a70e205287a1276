"""Versions that a target will compute with, and the check of a plan that names other ones than the source's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from importlib import metadata
from pathlib import Path

import pytest

from midstream.check.check_result import PASS, WARN
from midstream.fleet.fleet_file import parse_fleet
from midstream.hosts.host import FleetHost
from midstream.hosts.host_pool import HostPool
from midstream.install.expected_versions import expected_versions
from midstream.install.install_progress import needed_on_linux, pinned_versions
from midstream.migrate.planning.environment_check import check_environment
from midstream_host.machine import checks

NAMES = ("jax", "jaxlib", "haliax", "not-installed")
LOCK = """\
colorama==0.4.6 ; sys_platform == 'win32' \\
    --hash=sha256:00
jax==0.10.2 ; python_full_version < '3.12' \\
    --hash=sha256:00
jax==0.12.0.1 ; python_full_version >= '3.12' \\
    --hash=sha256:00
numpy==2.4.6 \\
    --hash=sha256:00
uvloop==1.0 ; python_full_version >= '3.12.4' and sys_platform == 'linux' \\
    --hash=sha256:00
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[HostPool]:
    fleet = parse_fleet(
        f"hosts:\n  own: {{type: local, root: {tmp_path}}}\n"
        f"  named: {{type: local, root: {tmp_path}, python: {sys.executable}}}\n"
    )
    with closing(HostPool(fleet)) as pool:
        yield pool


def survey(host: FleetHost) -> checks.Survey:
    return host.call(checks.survey)(root=host.root, visible=None)


@pytest.mark.parametrize("name", ["own", "named"])
def test_versions_of_an_environment_are_read(hosts: HostPool, name: str) -> None:
    host = hosts.get(name)
    installed = {package: metadata.version(package) for package in NAMES[:3]}
    assert expected_versions(host, hosts.fleet.hosts[name], survey(host), NAMES) == installed


def test_versions_of_a_lock_follow_python() -> None:
    assert pinned_versions(LOCK, "3.11.7")["jax"] == "0.10.2"
    assert pinned_versions(LOCK, "3.12.0")["jax"] == "0.12.0.1"
    assert pinned_versions(LOCK, "3.13.1")["numpy"] == "2.4.6"
    markers = {line.split(" ; ")[1].rstrip(" \\") for line in LOCK.splitlines() if " ; " in line}
    needed = {python: {m for m in markers if needed_on_linux(m, python)} for python in ("3.11.7", "3.12.3", "3.12.4")}
    assert [len(needed[python]) for python in ("3.11.7", "3.12.3", "3.12.4")] == [1, 1, 2]


def test_plan_names_versions_that_change(hosts: HostPool) -> None:
    host = hosts.get("named")
    arguments = host, hosts.fleet.hosts["named"], survey(host)
    installed = {package: metadata.version(package) for package in NAMES[:3]}
    same = check_environment(*arguments, {**installed, "python": "3.9.0"})
    assert (same.state, same.name) == (PASS, "environment")
    assert same.detail == "the same versions of 3 packages"
    older = check_environment(*arguments, {**installed, "jax": "0.9.2"})
    assert older.state == WARN
    assert f"jax 0.9.2 -> {installed['jax']}" in older.detail
    assert "last bits" in older.detail
    assert "fleet file" in older.hint
    unknown = check_environment(*arguments, {})
    assert (unknown.state, "not known" in unknown.detail) == (PASS, True)
