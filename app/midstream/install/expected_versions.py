"""Versions of the packages that an engine will have on a host."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from importlib import metadata

from midstream.fleet.fleet import HostConfig
from midstream.hosts.host import Host
from midstream.hosts.rpc.result_checks import printed_value
from midstream.install.environment import builds_environment
from midstream.install.errors import LaunchError
from midstream.install.install_progress import pinned_versions
from midstream.install.interpreter import python_build
from midstream.install.variant import choose_variant
from midstream_host.machine import environments
from midstream_host.machine.checks import Survey
from midstream_host.runs.process_start import with_setup
from midstream_host.shapes import Text

# Prints the versions of the packages that are its arguments.
_LIST = """
import json, sys
from importlib import metadata
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps({"versions": found}))
"""


@dataclass(frozen=True)
class _Installed:
    """Output of `_LIST`: version by package."""

    versions: dict[str, Text]


def expected_versions(host: Host, config: HostConfig, survey: Survey, names: Collection[str]) -> dict[str, str]:
    """Return the versions of packages that the engine on a host has, or will have.

    Of those of ``names``. Empty where they are not known before the start: in a container, or where no lock serves
    the host. Only reads.

    Raises:
        RemoteError: The host does not answer, or with something else.
    """
    if config.container is not None:
        return {}
    if config.python:
        argv = with_setup([config.python, "-I", "-c", _LIST, *sorted(names)], config.setup)
        answer = host.call(environments.run_command)(argv=argv, env={})
        if answer.code:
            return {}
        lines = answer.output.strip().splitlines()
        printed = printed_value(host.name, "the list of its packages", _Installed, lines[-1] if lines else "")
        return {name: version for name, version in printed.versions.items() if name in names}
    if not builds_environment(config):
        return {name: version for name in names if (version := _here(name)) is not None}
    try:
        lock = choose_variant(host.name, config, survey.accelerators).lock
        python = survey.interpreters.version or python_build(survey.facts.machine).version
    except LaunchError:
        return {}
    pinned = pinned_versions(lock, python)
    return {name: pinned[name] for name in names if name in pinned}


def _here(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
