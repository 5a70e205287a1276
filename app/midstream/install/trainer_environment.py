"""Another trainer's Python on a host: named, or built from a lock.

The lock is pip's requirements or one of conda, in the trainer's run file.
"""

from __future__ import annotations

from collections.abc import Callable

from midstream.fleet.container_config import ContainerConfig
from midstream.fleet.fleet import HostConfig
from midstream.hosts.container_command import in_container
from midstream.hosts.container_host import IMAGE_PYTHON
from midstream.hosts.host import Host
from midstream.install.conda_environment import build_conda_environment
from midstream.install.environment import IMAGE_HINT, Environment, build_environment
from midstream.install.errors import LaunchError
from midstream.install.package_check import IMPORT_TIMEOUT, import_packages
from midstream.install.reporter import reporter_of
from midstream_host.driver.run_file import RunFile
from midstream_host.machine import environments
from midstream_host.runs.process_start import with_setup

_VERSION = "import platform; print(platform.python_version())"


def prepare_trainer_environment(
    host: Host, config: HostConfig, run: RunFile, progress: Callable[[str], None] | None = None
) -> Environment:
    """Find or build the interpreter that starts the run's trainer on ``host``.

    In this order: the run file's interpreter; an environment of its requirements or of its lock of conda, built
    where it is missing; ``python:`` of the host in the fleet file. In a container, all of them are those of its image.

    Raises:
        LaunchError: There is none, or it does not start.
    """
    if config.container is not None and config.container.runtime != "pyxis":
        _start_image(host, config, config.container)
    if run.environment.requirements:
        hashed = "--hash=" in run.environment.requirements
        return build_environment(host, config, reporter_of(progress), run.environment.requirements, (), hashed=hashed)
    if run.environment.conda:
        return build_conda_environment(host, config, run.environment.conda, reporter_of(progress))
    python = run.environment.python or config.python or ""
    where = "the run file" if run.environment.python else f"python: of {host.name} in the fleet file"
    if not python:
        raise LaunchError(
            f"{host.name}: no interpreter is named for the trainer",
            "environment: {python: /path/to/python} or {lock: FILE} in the run file, or python: of "
            f"{host.name} in the fleet file",
        )
    command = in_container(config.container, [python, "-c", _VERSION], root=host.root, variables=config.env)
    answer = host.call(environments.run_command, timeout=IMPORT_TIMEOUT)(
        argv=with_setup(command, config.setup), env=dict(config.env)
    )
    if answer.code:
        raise LaunchError(
            f"{host.name}: {python}, named in {where}: {answer.error or f'ends with {answer.code}'}",
            "the same path has to exist on every host of the run, or lock: builds an environment there",
        )
    return Environment(python, f"named in {where}")


def _start_image(host: Host, config: HostConfig, container: ContainerConfig) -> None:
    """Start the image's interpreter once: its runtime may have to fetch it.

    Raises:
        LaunchError: It does not start.
    """
    python = config.python or IMAGE_PYTHON
    answer = import_packages(host, config, python, ())
    if answer.code:
        raise LaunchError(
            f"{host.name}: {python} in the {container.runtime} container {container.image}: "
            f"{answer.error or f'ends with {answer.code}'}",
            IMAGE_HINT.format(host.name),
        )
