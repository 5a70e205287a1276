"""Wrap a command so that it runs in a container of its host.

Any command of the host can be wrapped: what an attempt is started with, an import of the packages, a trainer's own
command. The container has the host's network, IPC and processes, so that ports, shared memory and the process ids in a
run's records are those of the host; the user who starts it; the root and further mounts under their own paths; and the
accelerators that the host has. It ends with the command.

Programs in it have the identity of the machine for buckets: the variables and files of the standard credentials of AWS
and Google, read-only. A machine's own metadata service is reached over the host's network.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from midstream.fleet.container_config import ContainerConfig

# Also passed on where they are set on the host: what a job of SLURM was given, and the identity for buckets.
INHERITED = (
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION",
    "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE", "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_EC2_METADATA_DISABLED", "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "GOOGLE_CLOUD_PROJECT", "GCE_METADATA_HOST", "GCE_METADATA_IP", "STORAGE_EMULATOR_HOST",
    "TENSORSTORE_GCS_HTTP_URL", "GOOGLE_AUTH_TOKEN_FOR_TESTING",
)  # fmt: skip
# Variables that name a file of credentials.
CREDENTIAL_FILES = (
    "GOOGLE_APPLICATION_CREDENTIALS", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
)  # fmt: skip
# Directories of credentials, and the variable that names them, or a file in them: HOME is another one in a container.
AWS, GCLOUD = "${HOME:-}/.aws", "${CLOUDSDK_CONFIG:-${HOME:-}/.config/gcloud}"
DIRECTORIES = (
    (AWS, "AWS_CONFIG_FILE", f"${{AWS_CONFIG_FILE:-{AWS}/config}}"),
    (AWS, "AWS_SHARED_CREDENTIALS_FILE", f"${{AWS_SHARED_CREDENTIALS_FILE:-{AWS}/credentials}}"),
    (GCLOUD, "CLOUDSDK_CONFIG", GCLOUD),
)
DIRECTORY_PATHS = tuple(f'"{name}"' for name in (AWS, GCLOUD))
DEVICES = "/dev/accel* /dev/vfio/* /dev/infiniband/*"  # TPUs and InfiniBand; GPUs need their driver's libraries too


# Commands of the runtimes that end well where containers can be started: docker's needs its daemon.
READY = {
    "docker": ["docker", "version", "--format", "{{.Server.Version}}"],
    "podman": ["podman", "version", "--format", "{{.Client.Version}}"],
    "apptainer": ["apptainer", "version"],
    "enroot": ["enroot", "version"],
}
RUNTIME_FAILED = 125  # exit code of docker and podman: the container was not created


def in_container(
    config: ContainerConfig | None,
    argv: Sequence[str],
    *,
    root: str,
    variables: Iterable[str] = (),
    stdin: bool = False,
) -> list[str]:
    """Return ``argv`` as a command of the host that runs it in the container.

    Without a container, ``argv`` itself is returned.

    The command's working directory, standard streams, signals and exit code are those of the container.

    Args:
        config: The container; None, or one of pyxis, which srun itself starts: the command is not wrapped.
        argv: The command, as the image names it.
        root: midstream's directory on the host.
        variables: Names of the variables of the host's environment that the command gets.
        stdin: Whether the command reads its standard input.
    """
    if config is None or config.runtime == "pyxis":
        return list(argv)
    names = list(dict.fromkeys((*variables, *INHERITED, *CREDENTIAL_FILES)))
    mounts = [_mount(mount) for mount in dict.fromkeys((root, *config.mounts))]
    if config.runtime == "apptainer":
        script = _apptainer(config, mounts)
    elif config.runtime == "enroot":
        script = _enroot(config, mounts, names)
    else:
        script = _docker(config, mounts, names, stdin)
    return ["sh", "-c", script, "sh", *argv]


def srun_flags(config: ContainerConfig | None, *, root: str) -> list[str]:
    """Return the flags of srun that start the container with pyxis; empty for others."""
    if config is None or config.runtime != "pyxis":
        return []
    mounts = ",".join(":".join(filter(None, _mount(mount))) for mount in dict.fromkeys((root, *config.mounts)))
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


def _credentials(
    flag: str, mounts: Sequence[tuple[str, str, str]], variable: str = "", paths: Sequence[str] = ()
) -> str:
    """Return lines of shell that put the host's credentials in front of "$@", for reading alone.

    What is mounted already stays as it is.

    Args:
        flag: Flag that mounts a path.
        mounts: All other mounts.
        variable: Flag that sets a variable, for the directories; empty where the home directory is mounted anyway.
        paths: Further words of shell, each a path.
    """
    files = " ".join(f'"${{{name}:-}}"' for name in CREDENTIAL_FILES)
    mounted = shlex.quote(f":{':'.join(target for _, target, _ in mounts)}:")
    lines = (
        f"mounted={mounted}\nfor each in {' '.join([files, *paths])}; do\n"
        '    case "$each" in /*) ;; *) continue ;; esac\n'
        '    case "$mounted" in *":$each:"*) continue ;; esac\n'
        f'    [ -e "$each" ] && set -- {flag} "$each:$each:ro" "$@" && mounted="$mounted$each:"\n'
        "done\n"
    )
    for path, name, value in DIRECTORIES if variable else ():
        lines += f'[ -d "{path}" ] && set -- {variable} "{name}={value}" "$@"\n'
    return lines


def _docker(config: ContainerConfig, mounts: Sequence[tuple[str, str, str]], names: Sequence[str], stdin: bool) -> str:
    words = [config.runtime, "run", "--rm", "--network=host", "--ipc=host", "--pid=host"]
    words += ["--interactive"] if stdin else []
    gpus = "--gpus all" if config.runtime == "docker" else "--device nvidia.com/gpu=all"
    words += [f"--volume={':'.join(filter(None, mount))}" for mount in mounts]
    words += [f"--env={name}" for name in names]
    mapped = "" if config.runtime == "docker" else '[ "$(id -u)" = 0 ] || set -- --userns=keep-id "$@"\n'
    return (
        f'set -- {shlex.join([*config.options, "--entrypoint=", config.image])} "$@"\n'
        f"{_devices('--device')}"
        f"{_credentials('--volume', mounts, '--env', DIRECTORY_PATHS)}"
        f'[ -e /dev/nvidiactl ] && set -- {gpus} "$@"\n'
        f"{mapped}"
        f'exec {shlex.join(words)} --user="$(id -u):$(id -g)" --workdir="$PWD" "$@"'
    )


def _apptainer(config: ContainerConfig, mounts: Sequence[tuple[str, str, str]]) -> str:
    # apptainer passes all of the environment on, and /dev and the home directory with it.
    words = ["apptainer", "exec", *(f"--bind={':'.join(filter(None, mount))}" for mount in mounts)]
    return (
        f'set -- {shlex.join([*config.options, config.image])} "$@"\n'
        '[ -e /dev/nvidiactl ] && set -- --nv "$@"\n'
        f"{_credentials('--bind', mounts)}"
        f'exec {shlex.join(words)} --pwd "$PWD" "$@"'
    )


def _enroot(config: ContainerConfig, mounts: Sequence[tuple[str, str, str]], names: Sequence[str]) -> str:
    words = ["enroot", "start", "--rw"]
    words += [f"--mount={source}:{target}{':ro' if mode else ''}" for source, target, mode in mounts]
    words += [f"--env={name}" for name in names]
    inside = 'sh -c \'cd "$1" && shift && exec "$@"\' sh'  # it has no flag for the working directory
    return (
        f'set -- {shlex.join([*config.options, config.image])} {inside} "$PWD" "$@"\n'
        f"{_devices('--mount')}{_credentials('--mount', mounts, '--env', DIRECTORY_PATHS)}"
        f'exec {shlex.join(words)} "$@"'
    )
