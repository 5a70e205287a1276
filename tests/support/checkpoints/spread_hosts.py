"""Hosts without a shared disk, with processes that are threads here: they save and start together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from midstream_core.records import Manifest, RunPaths
from midstream_engine.attempt.consensus import agree_on_origin
from midstream_engine.attempt.resume import Origin
from midstream_engine.checkpoint.boxes import full_box
from midstream_engine.checkpoint.loading.checkpoint_list import newest_complete
from midstream_engine.checkpoint.saving import consensus
from midstream_engine.checkpoint.saving.checkpoint_writer import train_document
from midstream_engine.checkpoint.saving.save_group import SaveGroup
from midstream_engine.checkpoint.saving.snapshot import HostArray
from midstream_engine.processes.coordinator_client import CoordinatorClient, connect_to_coordinator
from midstream_engine.processes.rendezvous import Processes
from midstream_engine.processes.shared_file_systems import SharedFileSystems, find_shared_file_systems
from midstream_engine.runtime.attempt_record import AttemptRecord
from support.checkpoints.checkpoint_states import PROVENANCE, STATE
from support.loopback import free_port

NAME = "step-7-a001"
SHAPE = (512, 2048)
T = TypeVar("T")


class Hosts:
    """Directories of hosts below ``root``, named by a letter; ``processes``: the host of each process of a save."""

    def __init__(self, root: Path, processes: str = "ab") -> None:
        self._root, self._processes = root, processes
        self.clients: dict[int, CoordinatorClient] = {}
        for host in "abc":
            for directory in (self.paths(host).checkpoints, self.paths(host).attempts):
                Path(directory).mkdir(parents=True)

    def paths(self, host: str) -> RunPaths:
        return RunPaths(str(self._root / host), "run")

    def share(self, host: str) -> Path:
        return Path(self.paths(host).checkpoint(NAME))

    def together(self, processes: str, work: Callable[[CoordinatorClient, SharedFileSystems], T]) -> list[T]:
        """Call ``work`` on a process of each host; return its results or the errors."""
        address, results = f"127.0.0.1:{free_port()}", dict[int, T | BaseException]()
        connected = threading.Barrier(len(processes))

        def run(process: int) -> None:
            self.clients[process], _ = connect_to_coordinator(
                address, process, len(processes), host=processes[process], token="",
                join_timeout=60, heartbeat_timeout=60, welcome=dict,
            )  # fmt: skip
            connected.wait(60)
            try:
                systems = find_shared_file_systems(self.clients[process], self.paths(processes[process]).dir)
                results[process] = work(self.clients[process], systems)
            except BaseException as error:  # noqa: BLE001 (returned)
                results[process] = error

        threads = [threading.Thread(target=run, args=(process,)) for process in range(len(processes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        for client in self.clients.values():
            client.close()
        return [results[process] for process in range(len(processes))]  # pyright: ignore[reportReturnType]

    def save(self, begin: Callable[[SaveGroup], None] = lambda _group: None) -> list[Manifest | BaseException]:
        """Save on all; return the manifest or the error of each. ``begin`` is called first, on each."""
        count = len(self._processes)
        box, short = full_box(SHAPE), full_box((3,))
        values = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
        small = np.arange(3, dtype=np.float32)

        def work(client: CoordinatorClient, systems: SharedFileSystems) -> Manifest | BaseException:
            paths = self.paths(self._processes[client.process])
            everywhere = {process: [box] for process in range(count)}
            short_everywhere = {process: [short] for process in range(count)}
            arrays = [
                HostArray("large", ("mlp", "embed"), SHAPE, "float32", [(box, values)], everywhere),
                HostArray("small", ("embed",), (3,), "float32", [(short, small)], short_everywhere),
            ]
            group = SaveGroup(client, 1, systems, timeout=60)
            begin(group)
            document = train_document(STATE, PROVENANCE, None)
            return consensus.finish_with_consensus(
                paths, paths.checkpoint(NAME), arrays, document, group, step=7, attempt=1, epoch=1
            )

        return self.together(self._processes, work)

    def start(self, processes: str, *, standby: bool = False) -> list[Origin | BaseException | None]:
        """Agree on a checkpoint as attempt 2 does; return what each process found, or its error."""

        def work(client: CoordinatorClient, systems: SharedFileSystems) -> Origin | BaseException | None:
            paths = self.paths(processes[client.process])

            def find() -> Origin | None:
                name = newest_complete(paths, None)
                return Origin(paths.checkpoint(name), True, True, None, "", STATE) if name else None

            connected = Processes(client.process, client.count, processes[client.process], client)
            attempt = AttemptRecord(paths, 2, 1, "", False, standby, processes=connected, file_systems=systems)
            return agree_on_origin(attempt, find)

        return self.together(processes, work)
