"""Containers in which engines run: ``container:`` of a host or a target."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from midstream.errors import UsageError
from midstream.suggestions import nearest

RUNTIMES = ("docker", "podman", "apptainer", "enroot", "pyxis")  # pyxis: enroot by srun's own flags
# Options that midstream cannot work with: it follows processes by their ids on the host, waits for the
# command, and starts several containers of one image at a time.
UNUSABLE = {
    "docker": ("--pid", "--detach", "-d", "--name", "--restart"),
    "podman": ("--pid", "--detach", "-d", "--name", "--restart", "--replace"),
    "apptainer": ("--pid", "-p", "--containall", "-C"),
}
EXAMPLE = "container: {runtime: podman, image: registry.example.org/jax:25.04}"


@dataclass(frozen=True)
class ContainerConfig:
    """A container in which a host's engines run."""

    image: str = ""  # as the runtime names it
    runtime: str = "docker"  # one of RUNTIMES
    mounts: list[str] = field(default_factory=list)  # PATH or SOURCE:TARGET of the host, with :ro for reading alone
    options: list[str] = field(default_factory=list)  # further flags of the runtime


def check_container(where: str, config: ContainerConfig | None, *, slurm: bool) -> None:
    """Check an entry of the fleet file.

    Args:
        where: The entry, for messages.
        config: Its container; None: it has none.
        slurm: Whether it is that of a SLURM target.

    Raises:
        UsageError: It is invalid.
    """
    if config is None:
        return
    if not config.image or config.image.startswith("-"):
        raise UsageError(f"{where}.container has no image", EXAMPLE)
    if config.runtime not in RUNTIMES:
        raise UsageError(f"{where}.container.runtime is {config.runtime!r}", nearest(config.runtime, RUNTIMES))
    if config.runtime == "pyxis" and not slurm:
        raise UsageError(f"{where}.container.runtime is pyxis, which is a plugin of SLURM's srun", "enroot")
    for option in config.options:
        name = option.partition("=")[0]
        if name in UNUSABLE.get(config.runtime, ()) and option != "--pid=host":
            raise UsageError(
                f"{where}.container.options has {option}",
                "midstream follows the engine by its process id on the host, one container for each command",
            )
    for mount in config.mounts:
        if not re.fullmatch(r"/[^:,]*(:/[^:,]*)?(:r[ow])?", mount):
            raise UsageError(
                f"{where}.container.mounts has {mount!r}", "an absolute PATH, SOURCE:TARGET or SOURCE:TARGET:ro"
            )
