"""A host as its engines see it: commands run in its container.

What is written under the root is the host's own, and so are the network and the processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from midstream.fleet.fleet import HostConfig
from midstream.hosts.container_command import in_container
from midstream.hosts.host import ANSWER_LIMIT, CALL_TIMEOUT, Completed, Host, P, Process, R
from midstream.hosts.rpc import remote_call
from midstream_host.runs.process_start import with_setup

IMAGE_PYTHON = "python3"  # interpreter of an image, unless python: names another
_IN_ROOT = 'mkdir -p -- "$1" && cd -- "$1" && shift && exec "$@"'


class ContainerHost:
    """The `Host` of the containers of ``machine``, one for each command.

    ``python``: an interpreter of the image, or under the root; by default the image's.
    """

    def __init__(self, machine: Host, config: HostConfig, python: str = "") -> None:
        assert config.container is not None
        self.machine, self.config, self._container = machine, config, config.container
        self.name, self.root = machine.name, machine.root
        self.remote_python = python or config.python or IMAGE_PYTHON

    def connect(self) -> None:
        self.machine.connect()
        self.root = self.machine.root

    def with_new_connection(self) -> Host:
        return ContainerHost(self.machine.with_new_connection(), self.config, self.remote_python)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout: float | None = CALL_TIMEOUT,
        limit: int = ANSWER_LIMIT,
        what: str = "",
    ) -> Completed:
        return self.machine.run(
            self._wrapped(argv, env), stdin=stdin, env=env, timeout=timeout, limit=limit, what=what or argv[0]
        )

    def open(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, window: int | None = None) -> Process:
        return self.machine.open(self._wrapped(argv, env), env=env, window=window)

    def call(self, function: Callable[P, R], /, *, timeout: float | None = CALL_TIMEOUT) -> Callable[P, R]:
        return remote_call.caller(self, function, timeout)

    def close(self) -> None:
        self.machine.close()

    def _wrapped(self, argv: Sequence[str], env: Mapping[str, str] | None) -> list[str]:
        words = in_container(self._container, argv, root=self.machine.root, variables=env or (), stdin=True)
        # An image need not have the directory in which a login starts.
        return with_setup(["sh", "-c", _IN_ROOT, "sh", self.machine.root, *words], self.config.setup)


def engine_host(host: Host, config: HostConfig, python: str = "") -> Host:
    """Return ``host`` as its engines see it: itself, or its container.

    A container of pyxis exists on the compute nodes alone, when a job has started: it is the host itself then.
    ``python``: see `ContainerHost`.
    """
    if config.container is None or config.container.runtime == "pyxis":
        return host
    return ContainerHost(host, config, python)


def machine_of(host: Host) -> Host:
    """Return the machine of a host: itself, or that of the container."""
    return host.machine if isinstance(host, ContainerHost) else host
