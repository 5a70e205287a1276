"""Rendezvous of an attempt's processes.

The coordinator comes first, then jax's service for collectives.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from midstream_core import records
from midstream_core.attempt.errors import EngineError
from midstream_engine.config.distributed import DistributedConfig
from midstream_engine.processes.coordinator import split_address
from midstream_engine.processes.coordinator_client import CoordinatorClient, PeerLostError, connect_to_coordinator

# jax is imported inside functions: train.py imports this module first, reports an invalid configuration without the
# seconds that importing jax takes, and imports jax with the garbage collector off.
log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
EXIT_TIMEOUT = 10.0  # seconds for the main thread to end after a failure; it may be blocked in a collective
STOP_TIMEOUT = 1.0  # seconds to record a stop that another process has reported
# Words in the error of a collective that fails because a process ended. The process is identified a little later.
_COLLECTIVE = re.compile(r"gloo|nccl|collective|coordinat|connection|socket|unavailable|deadline|peer", re.IGNORECASE)


@dataclass(frozen=True)
class Processes:
    """Processes of this attempt, and this one's number.

    ``client`` is None where there is only one process.
    """

    index: int = 0
    count: int = 1
    host: str = ""
    client: CoordinatorClient | None = None
    timeout: float = 60.0  # seconds without a heartbeat after which a process counts as failed

    @property
    def leads(self) -> bool:
        """Whether this is process 0.

        Process 0 decides for all and writes the files that exist once.
        """
        return self.index == 0

    def broadcast(self, key: str, make: Callable[[], bytes]) -> bytes:
        """Call ``make`` on process 0 and return its result on all.

        Where ``make`` raises, all processes fail.
        """
        if self.client is None:
            return make()
        return self.client.broadcast(key, make() if self.leads else None)

    def barrier(self, key: str) -> None:
        """Wait until all processes have arrived at ``key``. Raises PeerLostError."""
        if self.client is not None:
            self.client.exchange(key, b"")

    def consensus(self, key: str, program: Callable[P, T]) -> Callable[P, T]:
        """Return ``program`` with a barrier before its first call.

        Devices connect at a program's first call, and jax (Gloo, on CPUs) gives up a process that arrives half a minute
        after another. The barrier lets a process that compiles or restores longer arrive at the same time.
        """
        if self.client is None:
            return program
        started = False

        def call(*arguments: P.args, **named: P.kwargs) -> T:
            nonlocal started
            if not started:
                self.barrier(f"first-{key}")
                started = True
            return program(*arguments, **named)

        return call

    def watch(self, on_failure: Callable[[str], None], on_stop: Callable[[str], None]) -> None:
        """Watch the other processes; this one ends with them.

        Args:
            on_failure: Called at the first failure with a line that names the process. This process has some seconds to
                fail by itself.
            on_stop: Called with such a line when a process stops before the first update. This process exits then.
        """
        if self.client is None:
            return

        def end(failure: str) -> None:
            timer = threading.Timer(EXIT_TIMEOUT, os._exit, (records.EXIT_FAILED,))
            timer.daemon = True
            timer.start()
            on_failure(failure)

        def stop(line: str) -> None:
            timer = threading.Timer(STOP_TIMEOUT, os._exit, (records.EXIT_DONE,))
            timer.daemon = True
            timer.start()
            on_stop(line)
            records.remove_unfinished_files()
            os._exit(records.EXIT_DONE)

        self.client.on_failure(end)
        self.client.on_stop(stop)

    def explained(self, error: Exception) -> Exception:
        """Return ``error``, or the first failure where it made a collective fail."""
        if self.client is None or isinstance(error, EngineError):
            return error
        text = f"{type(error).__name__} {error}"
        failure = self.client.wait_for_failure(self.timeout + 5 if _COLLECTIVE.search(text) else 0.5)
        return PeerLostError(failure) if failure else error

    def leave(self) -> None:
        """End all processes in order. Raises PeerLostError where one fails before."""
        if self.client is None:
            return
        import jax

        self.client.exchange("end", b"")
        jax.distributed.shutdown()
        self.client.leave()

    def stop(self, reason: str) -> None:
        """Stop all processes before the first update; this one exits next."""
        if self.client is not None:
            self.client.report_stop(reason)

    def abandon(self, reason: str) -> None:
        """Disconnect this process only, and report the reason to the others."""
        if self.client is not None:
            self.client.report_failure(reason)
            self.client.close()


ALONE = Processes()


def host_name(environment: Mapping[str, str]) -> str:
    """Return this machine's name: MIDSTREAM_HOST, set by the launcher, or its own."""
    return environment.get("MIDSTREAM_HOST") or socket.gethostname()


def rendezvous(
    config: DistributedConfig,
    environment: Mapping[str, str],
    token: str,
    connected: Callable[[Processes], None] = lambda _processes: None,
) -> Processes:
    """Connect the processes, then start jax's service, before any other use of jax.

    The coordinator listens at the configured port; jax's service at a free port of the same host, which process 0 sends
    to the others.

    Args:
        config: ``trainer.distributed``.
        environment: Completes it.
        token: Run and attempt, as far as they are determined.
        connected: Called with the processes before jax's service starts. The service waits for all processes,
            also for one that has failed: `Processes.watch` ends the wait.

    Raises:
        EngineError: The processes cannot be connected; the message has one line.
    """
    import jax

    config = complete(config, environment)
    if not config.has_peers:
        return Processes(host=host_name(environment))
    address, count, index = config.coordinator_address, config.num_processes, config.process_id
    assert address is not None
    assert count is not None
    assert index is not None
    host = host_name(environment)
    if count == 1:
        return Processes(host=host)
    log.info("process %d of %d waits for the others at %s", index, count, address)
    client, welcome = connect_to_coordinator(
        address,
        index,
        count,
        host=host,
        token=token,
        join_timeout=config.initialization_timeout,
        heartbeat_timeout=config.heartbeat_timeout,
        welcome=lambda: {"service": _service_address(address)},
    )
    processes = Processes(index, count, host, client, config.heartbeat_timeout)
    connected(processes)
    if failure := client.first_failure():
        raise PeerLostError(failure)
    if (os.environ.get("JAX_PLATFORMS") or "").startswith("cpu"):
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would replace the engine's handler of SIGTERM
    try:
        jax.distributed.initialize(
            str(welcome["service"]),
            count,
            index,
            local_device_ids=config.local_device_ids or None,
            cluster_detection_method="deactivate",
            initialization_timeout=config.initialization_timeout,
            # Longer than the coordinator's: jax's service ends a process by SIGABRT, without naming the failed one.
            heartbeat_timeout_seconds=max(100, 4 * config.heartbeat_timeout),
        )
    except (RuntimeError, ValueError) as error:
        raise EngineError(f"trainer.distributed: jax's service: {' '.join(str(error).split())}") from None
    log.info("process %d of %d: all processes have connected: %s", index, count, ", ".join(map(str, client.peers)))
    return processes


def complete(config: DistributedConfig, environment: Mapping[str, str]) -> DistributedConfig:
    """Complete ``config`` from the environment.

    Sources are JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or, with ``initialize_jax_distributed``,
    SLURM, a TPU pod or another cluster that jax detects. Raises EngineError where it detects none.
    """
    config = config.with_environment(environment)
    if config.coordinator_address is not None or not config.initialize_jax_distributed:
        return config
    from jax._src.clusters import ClusterEnv  # jax has no public way to detect a cluster without starting

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
    """Return a free port of this host, process 0's, by the name that the others use."""
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
    host, _ = split_address(address)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
