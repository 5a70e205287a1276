"""Import of packages by an interpreter of a host, or of its container."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from midstream.fleet.fleet import HostConfig
from midstream.hosts.container_command import in_container
from midstream.hosts.host import Host
from midstream.hosts.rpc.result_checks import printed_value
from midstream_host.machine import environments
from midstream_host.runs.process_start import with_setup
from midstream_host.shapes import Text

MINIMUM = (3, 11)
IMPORT_TIMEOUT = 300.0  # seconds that the engine's packages may take to import: cold, from a shared disk
IMAGE_TIMEOUT = 3600.0  # seconds: the container's runtime may fetch the image first
MARGIN = 10.0  # seconds for the answer of a command that was ended

_CHECK = """
import importlib, json, sys
missing = []
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        missing.append([name, f"{type(error).__name__}: {error}"])
print(json.dumps({"version": list(sys.version_info[:3]), "missing": missing}))
"""


@dataclass(frozen=True)
class _Imported:
    """Output of `_CHECK`: interpreter version, and (module, error) of failed imports."""

    version: list[int]
    missing: list[tuple[Text, Text]]


def missing_modules(host: Host, config: HostConfig, python: str, modules: Sequence[str]) -> list[str]:
    """Return those of ``modules`` that ``python`` cannot import.

    The list is empty if ``python`` cannot be started.
    """
    answer = import_packages(host, config, python, modules)
    if answer.code:
        return []
    return [name for name, _ in _imported(host, answer.output).missing]


def import_packages(host: Host, config: HostConfig, python: str, modules: Sequence[str]) -> environments.CommandResult:
    """Import ``modules`` with ``python``; the answer is for `fault_of`."""
    # The variables may be secret: they are sent over stdin, not in a command line.
    env = {**config.env, "JAX_PLATFORMS": "cpu", "PYTHONSAFEPATH": "1"}
    argv = in_container(config.container, [python, "-c", _CHECK, *modules], root=host.root, variables=env)
    timeout = IMPORT_TIMEOUT if config.container is None else IMAGE_TIMEOUT
    return host.call(environments.run_command, timeout=timeout)(
        argv=with_setup(argv, config.setup), env=env, timeout=timeout - MARGIN
    )


def package_fault(host: Host, config: HostConfig, python: str, modules: Sequence[str]) -> str:
    """Return why the engine does not run with ``python``; empty if it does.

    The reason is one line.
    """
    return fault_of(host, import_packages(host, config, python, modules))


def fault_of(host: Host, answer: environments.CommandResult) -> str:
    """Return what `package_fault` returns, from the answer of `import_packages`."""
    if answer.code:
        return answer.error or f"ends with {answer.code}"
    imported = _imported(host, answer.output)
    if tuple(imported.version) < MINIMUM:
        version, minimum = (".".join(map(str, numbers)) for numbers in (imported.version, MINIMUM))
        return f"is Python {version}, the engine needs {minimum} or newer"
    if imported.missing:
        names = ", ".join(name for name, _ in imported.missing)
        return f"cannot import {names} ({imported.missing[0][1]})"
    return ""


def _imported(host: Host, output: str) -> _Imported:
    lines = output.strip().splitlines()
    return printed_value(host.name, "the check of the engine's packages", _Imported, lines[-1] if lines else "")
