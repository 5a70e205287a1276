"""Output of commands for checks and installations on a host that is hostile or broken."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from midstream.check import rehearsal
from midstream.check.check_result import FAIL, PASS
from midstream.check.host_checks import check_libc, check_python
from midstream.errors import MidstreamError, RemoteError
from midstream.fleet.fleet import Fleet, LocalHostConfig, SshHostConfig, Target
from midstream.hosts.host import Host
from midstream.hosts.host_pool import HostPool
from midstream.install import environment, package_check
from midstream.install.wheelhouse import glibc_version
from midstream.launch import host_links
from midstream_host.machine.environments import CommandResult, Interpreters

REPORT: dict[str, Any] = {
    "event": "rehearsal", "parameters": 1_000_000, "devices": 2, "device_kind": "cpu", "fits": None,
    "memory_limit": None, "programs": [{"name": "step", "seconds": 2.0, "memory": {"total": 1 << 20}}],
}  # fmt: skip


def host_with(answer: object) -> Host:
    return cast(Host, SimpleNamespace(name="lab", root="/x", call=lambda function, timeout=None: lambda **_: answer))


def rehearsed(output: str, code: int = 0) -> Any:
    host = host_with(CommandResult(code, output, "midstream: it does not fit"))
    hosts = SimpleNamespace(get=lambda name: host, fleet=Fleet(hosts={"lab": LocalHostConfig()}))
    target = Target("lab", ("lab",))
    return rehearsal._one(cast(HostPool, hosts), target, "lab", "{}", "/engine", "python", ())


def test_rehearsal_is_read_from_the_last_line_of_json() -> None:
    check = rehearsed(f"warming up\n{json.dumps(REPORT)}\n")
    assert (check.state, check.host) == (PASS, "lab")
    assert check.detail == "1.0 M parameters on 2 x cpu: compiled in 2 s, a step needs 1 MiB a device"
    full = rehearsed(json.dumps({**REPORT, "fits": False, "memory_limit": 1 << 19}))
    assert full.state == FAIL
    failed = rehearsed("", code=1)
    assert (failed.state, failed.detail) == (FAIL, "it does not fit")


@pytest.mark.parametrize(
    "line",
    [
        "{",
        '{"event": "rehearsal"}',
        '{"event": "other"}',
        json.dumps({**REPORT, "programs": 7}),
        json.dumps({**REPORT, "parameters": -1}),
        json.dumps({**REPORT, "device_kind": None}),
        '{"a": ' + "[" * 100_000,
    ],
)
def test_malformed_rehearsal_is_a_failed_check(line: str) -> None:
    check = rehearsed(line)
    assert check.state == FAIL
    assert check.detail.startswith("the engine's rehearsal: ")
    assert "\n" not in check.detail


@pytest.mark.parametrize("output", ["", "3.11", "x y z", "3 11 7; rm", "99999999 1 1", "٣ ١١ ٧"])
def test_interpreter_that_prints_no_version_is_a_failed_check(output: str) -> None:
    config = LocalHostConfig(python="python3")
    assert check_python(host_with(CommandResult(0, "3 11 7\n", "")), config, cast(Any, None)).state == PASS
    check = check_python(host_with(CommandResult(0, output, "")), config, cast(Any, None))
    assert (check.state, "prints no version" in check.detail) == (FAIL, True)


def test_glibc_of_any_text() -> None:
    assert (glibc_version("glibc 2.35"), glibc_version("glibc 2.31.9")) == ((2, 35), (2, 31))
    for text in ("", "musl 1.2", "glibc", "glibc x", "glibc 2", "glibc 2.x", "glibc 99999.1", "glibc 2.35\n2"):
        assert glibc_version(text) is None
        assert check_libc("lab", text).state == FAIL


@pytest.mark.parametrize("output", ["", "7", "{}", '{"version": [3], "missing": [["a"]]}', '{"version": "3"}'])
def test_malformed_list_of_packages_is_refused(output: str) -> None:
    good = '{"version": [3, 11, 7], "missing": [["wandb", "no module"]]}'
    config = LocalHostConfig(python="python3")
    answer = CommandResult(0, f"a banner\n{good}\n", "")
    assert package_check.missing_modules(host_with(answer), config, "python3", ["wandb"]) == ["wandb"]
    with pytest.raises(RemoteError, match=r"lab: the check of the engine's packages: "):
        package_check.missing_modules(host_with(CommandResult(0, output, "")), config, "python3", ["wandb"])


def test_interpreter_without_a_version_is_refused() -> None:
    found = Interpreters(None, "/usr/bin/python3.11", None, "x86_64", "3.11.7")
    host = host_with(found)
    host.remote_python = "python3"
    with pytest.raises(MidstreamError, match=r"lab: machine\.environments\.find: /usr/bin/python3\.11 without version"):
        environment.environment_needs(host, SshHostConfig(address="lab", variant="cpu"))


def test_address_that_a_host_leaves_out_counts_as_closed() -> None:
    listener = host_links.LinkListener("lab", 7, ("10.0.0.1", "10.0.0.2"), "token")
    [link] = host_links.try_links(listener, [host_with({})])
    assert (link.open, link.tried) == (False, {})
