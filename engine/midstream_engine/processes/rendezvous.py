"""Join the other processes of an attempt: the board first, then jax's own service."""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from midstream_engine import records
from midstream_engine.config.distributed import DistributedConfig
from midstream_engine.errors import EngineError
from midstream_engine.processes.coordinator import split
from midstream_engine.processes.message_board import Lost, MessageBoard, join_message_board

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
GRACE = 10.0  # seconds for the main thread to end by itself once a process is gone; it may be stuck in a collective
# What a collective says that fails because another process is gone. Whose fault it is, is known a little later.
_COLLECTIVE = re.compile(r"gloo|nccl|collective|coordinat|connection|socket|unavailable|deadline|peer", re.IGNORECASE)


@dataclass(frozen=True)
class Processes:
    """All processes of this attempt, as one of them sees them. ``board`` is None where there is one alone."""

    index: int = 0
    count: int = 1
    host: str = ""
    board: MessageBoard | None = None
    timeout: float = 60.0  # seconds without a sign of life after which a process is given up

    @property
    def leads(self) -> bool:
        """Whether this is process 0: the one that decides, and writes what is written once."""
        return self.index == 0

    def from_first(self, key: str, make: Callable[[], bytes]) -> bytes:
        """What process 0 made; the others wait for it. Where making fails there, all fail."""
        if self.board is None:
            return make()
        return self.board.from_first(key, make() if self.leads else None)

    def barrier(self, key: str) -> None:
        if self.board is not None:
            self.board.exchange(key, b"")

    def consensus(self, key: str, program: Callable[P, T]) -> Callable[P, T]:
        """``program``, whose first call begins on all processes at the same time: whoever compiled or restored faster
        waits at the board, as long as the others live. Connections between devices are made at a program's first call,
        and jax gives a process up that comes to that half a minute after another (Gloo's, on CPUs)."""
        if self.board is None:
            return program
        met = False

        def call(*arguments: P.args, **named: P.kwargs) -> T:
            nonlocal met
            if not met:
                self.barrier(f"first-{key}")
                met = True
            return program(*arguments, **named)

        return call

    def watch(self, when_gone: Callable[[str], None]) -> None:
        """Once a process is gone: call ``when_gone`` with a line that names it, and after a while end this one, too."""
        if self.board is None:
            return

        def end(obituary: str) -> None:
            when_gone(obituary)
            timer = threading.Timer(GRACE, os._exit, (records.EXIT_FAILED,))
            timer.daemon = True
            timer.start()

        self.board.when_gone(end)

    def explained(self, error: Exception) -> Exception:
        """``error``, or what really happened where a collective failed because another process is gone."""
        if self.board is None or isinstance(error, EngineError):
            return error
        text = f"{type(error).__name__} {error}"
        obituary = self.board.await_obituary(self.timeout + 5 if _COLLECTIVE.search(text) else 0.5)
        return Lost(obituary) if obituary else error

    def leave(self) -> None:
        """The orderly end of all together. Raises Lost where one does not come to it."""
        if self.board is None:
            return
        import jax

        self.board.exchange("end", b"")
        jax.distributed.shutdown()
        self.board.leave()

    def abandon(self, words: str) -> None:
        """The end of this process alone: the others are told why."""
        if self.board is not None:
            self.board.last_words(words)
            self.board.close()


ALONE = Processes()


def host_name(environment: Mapping[str, str]) -> str:
    """The name of this machine: the launcher's where it gave one (MIDSTREAM_HOST), else its own."""
    return environment.get("MIDSTREAM_HOST") or socket.gethostname()


def rendezvous(config: DistributedConfig, environment: Mapping[str, str], token: str) -> Processes:
    """Meet the other processes and start jax's service with them, before jax is used for anything else.

    The first port, the coordinator's, is the board's; jax's service gets a free port of process 0's host, which is told
    at the board. ``token``: run and attempt, as far as they are known. Raises EngineError in one line.
    """
    import jax

    config = complete(config, environment)
    if not config.wanted:
        return Processes(host=host_name(environment))
    address, count, index = config.coordinator_address, config.num_processes, config.process_id
    assert address is not None
    assert count is not None
    assert index is not None
    host = host_name(environment)
    if count == 1:
        return Processes(host=host)
    log.info("process %d of %d waits for the others at %s", index, count, address)
    board, welcome = join_message_board(
        address,
        index,
        count,
        host=host,
        token=token,
        joining=config.initialization_timeout,
        timeout=config.heartbeat_timeout,
        welcome=lambda: {"service": _service_address(address)},
    )
    if (os.environ.get("JAX_PLATFORMS") or "").startswith("cpu"):
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM away from the engine
    try:
        jax.distributed.initialize(
            str(welcome["service"]),
            count,
            index,
            local_device_ids=config.local_device_ids or None,
            cluster_detection_method="deactivate",
            initialization_timeout=config.initialization_timeout,
            # The board is quicker, and names who is gone; jax's own way of saying so is to abort.
            heartbeat_timeout_seconds=max(100, 4 * config.heartbeat_timeout),
        )
    except (RuntimeError, ValueError) as error:
        raise EngineError(f"trainer.distributed: jax's service: {' '.join(str(error).split())}") from None
    log.info("process %d of %d: all are here: %s", index, count, ", ".join(map(str, board.peers)))
    return Processes(index, count, host, board, config.heartbeat_timeout)


def complete(config: DistributedConfig, environment: Mapping[str, str]) -> DistributedConfig:
    """``config`` with what jax's environment variables say (JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES,
    JAX_PROCESS_ID), or, where ``initialize_jax_distributed`` asks for it, what SLURM, a TPU pod or another cluster that
    jax knows says. EngineError where that is nothing."""
    config = config.with_environment(environment)
    if config.coordinator_address is not None or not config.initialize_jax_distributed:
        return config
    from jax._src.clusters import ClusterEnv  # jax asks for these itself, but says nothing of them before it starts

    try:
        address, count, index, local = ClusterEnv.auto_detect_unset_distributed_params(
            None, None, None, None, None, config.initialization_timeout
        )
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        raise EngineError(f"trainer.distributed: no cluster found: {' '.join(str(error).split())}") from None
    if address is None or count is None or index is None:
        raise EngineError(
            "trainer.distributed.initialize_jax_distributed is true, and there is no SLURM step or TPU pod here; "
            "give coordinator_address, num_processes and process_id"
        )
    return config.at(address, count, index, list(local) if local else [])


def _service_address(address: str) -> str:
    """A free port of this host, which is process 0's, under the name by which the others know it."""
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
    host, _ = split(address)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
