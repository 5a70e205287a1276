"""Wrap a command so that it runs in a container of its host.

Any command of the host can be wrapped: what an attempt is started with, an import of the packages, a trainer's own
command. The container has the host's network, IPC and processes, so that ports, shared memory and the process ids in a
run's records are those of the host; the user who starts it; the root and further mounts under their own paths; and the
accelerators that the host has. It ends with the command.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from midstream.fleet.container_config import ContainerConfig

# Also passed on where they are set on the host: what a job of SLURM was given.
INHERITED = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
DEVICES = "/dev/accel* /dev/vfio/* /dev/infiniband/*"  # TPUs and InfiniBand; GPUs need their driver's libraries too


def in_container(
    config: ContainerConfig | None, argv: Sequence[str], *, root: str, variables: Iterable[str] = ()
) -> list[str]:
    """Return ``argv`` as a command of the host that runs it in the container.

    Without a container it is ``argv`` itself.

    The command's working directory, standard streams, signals and exit code are those of the container.

    Args:
        config: The container; None, or one of pyxis, which srun itself starts: the command is not wrapped.
        argv: The command, as the image names it.
        root: midstream's directory on the host.
        variables: Names of the variables of the host's environment that the command gets.
    """
    if config is None or config.runtime == "pyxis":
        return list(argv)
    names = list(dict.fromkeys((*variables, *INHERITED)))
    mounts = [_mount(each) for each in dict.fromkeys((root, *config.mounts))]
    script = {"docker": _docker, "podman": _docker, "apptainer": _apptainer, "enroot": _enroot}[config.runtime]
    return ["sh", "-c", script(config, mounts, names), "sh", *argv]


def srun_flags(config: ContainerConfig | None, *, root: str) -> list[str]:
    """Return the flags of srun that start the container with pyxis; empty for others."""
    if config is None or config.runtime != "pyxis":
        return []
    mounts = ",".join(":".join(filter(None, _mount(each))) for each in dict.fromkeys((root, *config.mounts)))
    return [f"--container-image={config.image}", f"--container-mounts={mounts}", "--no-container-mount-home",
            *config.options]  # fmt: skip


def _mount(text: str) -> tuple[str, str, str]:
    """Return source, target and mode (``ro`` or empty) of a mount."""
    source, *more = text.split(":")
    mode = more.pop() if more and more[-1] in ("ro", "rw") else ""
    return source, more[0] if more else source, "ro" if mode == "ro" else ""


def _devices(flag: str) -> str:
    """Return lines of shell that put the host's device files in front of "$@"."""
    return f'for each in {DEVICES}; do [ -e "$each" ] && set -- {flag} "$each" "$@"; done\n'


def _docker(config: ContainerConfig, mounts: Sequence[tuple[str, str, str]], names: Sequence[str]) -> str:
    words = [config.runtime, "run", "--rm", "--network=host", "--ipc=host", "--pid=host"]
    gpus = "--gpus all" if config.runtime == "docker" else "--device nvidia.com/gpu=all"
    words += [f"--volume={':'.join(filter(None, mount))}" for mount in mounts]
    words += [f"--env={name}" for name in names]
    mapped = "" if config.runtime == "docker" else '[ "$(id -u)" = 0 ] || set -- --userns=keep-id "$@"\n'
    return (
        f'set -- {shlex.join([*config.options, "--entrypoint=", config.image])} "$@"\n'
        f"{_devices('--device')}"
        f'[ -e /dev/nvidiactl ] && set -- {gpus} "$@"\n'
        f"{mapped}"
        f'exec {shlex.join(words)} --user="$(id -u):$(id -g)" --workdir="$PWD" "$@"'
    )


def _apptainer(config: ContainerConfig, mounts: Sequence[tuple[str, str, str]], names: Sequence[str]) -> str:
    del names  # it passes all of the environment on, and /dev with it
    words = ["apptainer", "exec", *(f"--bind={':'.join(filter(None, mount))}" for mount in mounts)]
    return (
        f'set -- {shlex.join([*config.options, config.image])} "$@"\n'
        '[ -e /dev/nvidiactl ] && set -- --nv "$@"\n'
        f'exec {shlex.join(words)} --pwd "$PWD" "$@"'
    )


def _enroot(config: ContainerConfig, mounts: Sequence[tuple[str, str, str]], names: Sequence[str]) -> str:
    words = ["enroot", "start", "--rw"]
    words += [f"--mount={source}:{target}{':ro' if mode else ''}" for source, target, mode in mounts]
    words += [f"--env={name}" for name in names]
    inside = 'sh -c \'cd "$1" && shift && exec "$@"\' sh'  # it has no flag for the working directory
    return (
        f'set -- {shlex.join([*config.options, config.image])} {inside} "$PWD" "$@"\n'
        f'{_devices("--mount")}exec {shlex.join(words)} "$@"'
    )
