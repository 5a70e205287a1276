"""Another trainer's environment on a host, created from a lock of conda."""

from __future__ import annotations

import re

from midstream.bundled_files import shipped
from midstream.errors import Exit, RemoteError, UsageError
from midstream.fleet.fleet import HostConfig
from midstream.hosts.host import Host
from midstream.hosts.rpc.remote_program import run_program
from midstream.hosts.rpc.report_types import BUILD_CONDA, Building, OutputLine, Problem
from midstream.hosts.rpc.result_checks import HINT
from midstream.install.environment import Environment, build_environment, buildable, environment_name
from midstream.install.errors import LaunchError
from midstream.install.package_check import MINIMUM
from midstream.install.reporter import Reporter
from midstream.trainers import conda_lock
from midstream.trainers.conda_lock import CondaList
from midstream_host.machine import conda_environments, environments
from midstream_host.machine.conda_environments import CondaTool

LOCK = "locks/conda.txt"  # of the library that creates environments on hosts without a tool
MODULE = "rattler"
SEARCH_TIMEOUT = 300.0  # seconds for a host to start the tools that it finds
FAILED_HINT = (
    "what the tool needs (proxies, CONDA_SSL_VERIFY, variables of the lock's channels) stands in env: of {} in the "
    "fleet file; or create the environment by hand, and environment: {{python: PREFIX/bin/python}}"
)


def find_tool(host: Host, config: HostConfig) -> CondaTool:
    """Return conda's platform of a host, and the tool that it has.

    Raises:
        RemoteError: The host's answer is impossible.
    """
    tool = host.call(conda_environments.find, timeout=SEARCH_TIMEOUT)(env=dict(config.env))
    is_known = tool.path is None or (tool.kind in conda_environments.TOOLS and tool.version)
    if not is_known or not re.fullmatch(r"[a-z]{1,16}-[A-Za-z0-9_]{1,32}", tool.platform):
        raise RemoteError(f"{host.name}: machine.conda_environments.find: an unknown tool or platform", "Answer", HINT)
    return tool


def list_for(host: str, platform: str, lists: str) -> CondaList:
    """Return the list of a host's platform.

    Raises:
        LaunchError: The lock has none, or is damaged.
    """
    try:
        by_platform = conda_lock.by_platform(lists)
    except UsageError as error:
        raise LaunchError(f"environment.conda: {error.message}", error.hint) from None
    if platform not in by_platform:
        raise LaunchError(
            f"{host} is {platform}, the lock of conda is for {', '.join(sorted(by_platform))}",
            f"conda-lock lock --platform {platform} (and those of the other hosts), then start the run from that lock",
            code=Exit.REFUSED,
        )
    return by_platform[platform]


def described(tool: CondaTool) -> str:
    """Return the tool in words."""
    return f"{tool.kind} {tool.version}" if tool.path else conda_environments.RATTLER


def build_conda_environment(host: Host, config: HostConfig, lists: str, report: Reporter) -> Environment:
    """Create the environment of a lock on ``host``, if it is not there, and return it.

    The host's tool creates it: micromamba, mamba or conda; py-rattler where it has none. The environment is in the
    host's container, where there is one.

    Raises:
        LaunchError: The lock has no packages for the host's platform, or the environment cannot be created.
    """
    inside, image = buildable(host, config)
    host_tool = find_tool(inside, config)
    listed = list_for(host.name, host_tool.platform, lists)
    name = environment_name(str(listed), "conda", host_tool.platform, image)
    ready = inside.call(environments.ready)(root=host.root, name=name)
    if ready is None:
        kind, tool, uv = (
            (host_tool.kind, host_tool.path, None) if host_tool.path else (conda_environments.RATTLER, None, None)
        )
        if tool is None:
            tool = _library(host, config, report)
        if listed.pip:
            uv = inside.call(environments.find, timeout=SEARCH_TIMEOUT)(minimum=list(MINIMUM)).uv
        building = run_program(inside, BUILD_CONDA)(
            root=host.root,
            name=name,
            packages=listed.explicit,
            requirements=listed.requirements,
            tool=tool,
            kind=kind,
            env=dict(config.env),
            uv=uv,
        )
        report.update(host.name, f"creating an environment of {listed.size} with {kind}", None)
        try:
            with building as lines:
                for line in lines:
                    ready = created(host.name, line, report) or ready
        finally:
            report.end(host.name)
        if ready is None:
            raise LaunchError(f"{host.name}: creating the environment of conda ended without a result", "try again")
    where = f" in the {config.container.runtime} container {image}" if config.container is not None else ""
    return Environment(ready.python, f"created from the lock of conda with {ready.how}{where}: {listed.size}")


def _library(host: Host, config: HostConfig, report: Reporter) -> str:
    """Return an interpreter that imports py-rattler, in an environment of its own.

    Raises:
        LaunchError: It cannot be installed.
    """
    tools = ", ".join(conda_environments.TOOLS)
    report(f"{host.name} has no {tools}: {conda_environments.RATTLER} creates the environment")
    try:
        return build_environment(host, config, report, shipped(LOCK).read_text(encoding="utf-8"), [MODULE]).python
    except LaunchError as error:
        raise LaunchError(
            f"{host.name} has no {tools}, and {conda_environments.RATTLER} cannot be installed: {error.message}",
            f"install micromamba there, in ~/.local/bin or in PATH: in env: of {host.name} in the fleet file",
        ) from None


def created(host: str, line: Building, report: Reporter) -> environments.InstalledEnvironment | None:
    """Return the environment, if a line says that it is complete.

    Raises:
        LaunchError: It cannot be created.
    """
    if isinstance(line, OutputLine):
        report.detail(line.text)
        return None
    if isinstance(line, Problem):
        raise LaunchError(
            f"{host}: the environment of conda cannot be created: {line.message}", FAILED_HINT.format(host)
        )
    return environments.InstalledEnvironment(line.python, line.how)
