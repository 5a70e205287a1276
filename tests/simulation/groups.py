"""Groups of hosts: the further processes of an attempt, which do what its first process does."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from midstream_core import records
from midstream_core.attempt.errors import CheckpointError
from simulation.machines import SimulatedProcess, present
from simulation.scheduler import SCHEDULER
from simulation.unseen import EngineStatus, unseen_ends

MEETING = 300.0  # seconds until all processes of an attempt have to be there
PEER_TIMEOUT = 30.0  # seconds until a process ends after another one of its attempt
RANK = "MIDSTREAM_SIMULATED_RANK"
FLAG = "--trainer.distributed.process_id"
ATTEMPTS: dict[str, dict[int, SimulatedProcess]] = {}  # directory of an attempt -> its newest processes


def position(argv: Sequence[str]) -> int:
    """Return the number of a process, by its command line."""
    return int(argv[list(argv).index(FLAG) + 1]) if FLAG in argv else 0


def size(argv: Sequence[str]) -> int:
    """Return how many processes the attempt of a command line has."""
    flag = "--trainer.distributed.num_processes"
    return int(argv[list(argv).index(flag) + 1]) if flag in argv else 1


def join(directory: str, rank: int, process: SimulatedProcess) -> None:
    """Note a process of an attempt."""
    ATTEMPTS.setdefault(directory, {})[rank] = process


class Peers:
    """The other processes of an attempt, as one of them sees them."""

    def __init__(self, directory: str, rank: int, number: int) -> None:
        self._directory, self._number = directory, number
        self._others = [other for other in range(number) if other != rank]
        self._lost: float | None = None

    def _running(self, rank: int) -> bool:
        process = ATTEMPTS.get(self._directory, {}).get(rank)
        return process is not None and process.exit_code is None

    def meet(self) -> None:
        """Wait for the others. CheckpointError if one does not come."""
        end = SCHEDULER.now + MEETING
        while not all(map(self._running, self._others)):
            if SCHEDULER.now > end:
                raise CheckpointError(f"not all {self._number} processes have met within {MEETING:.0f} s")
            time.sleep(1.0)

    def check(self) -> None:
        """Raise CheckpointError some time after one of the others has ended."""
        if all(map(self._running, self._others)):
            self._lost = None
            return
        self._lost = SCHEDULER.now if self._lost is None else self._lost
        if SCHEDULER.now > self._lost + PEER_TIMEOUT:
            raise CheckpointError("another process of this attempt has ended")


def follow(rank: int, number: int, directory: str, run_id: str) -> int:
    """Do what the first process does, as the present process; return the exit code."""
    files = records.AttemptPaths(directory)
    status = EngineStatus(
        files.status(rank), run_id=run_id, attempt=int(os.environ["MIDSTREAM_ATTEMPT"]),
        epoch=int(os.environ.get("MIDSTREAM_EPOCH", "1")), num_train_steps=0, process=rank, processes=number,
        host=os.environ.get("MIDSTREAM_HOST", ""),
    )  # fmt: skip
    peers = Peers(directory, rank, number)
    state = records.FAILED
    try:
        peers.meet()
        assert SCHEDULER.current is not None
        SCHEDULER.current.background = True
        while True:
            first = records.Status.read_or_none(files.status(0))
            if first is not None and first.state in records.ENDED:
                state = first.state
                break
            if first is not None:
                status.update(state=first.state, step=first.step, epoch=first.epoch, start=first.start)
            peers.check()
            SCHEDULER.park_until(unseen_ends(2.0)[-1])
    except (CheckpointError, records.RecordError, OSError) as error:
        print(error, flush=True)
        status.update(message=str(error))
    status.update(state=state)
    status.close()
    return 0 if state != records.FAILED else 1


def main() -> int:
    """Run a further process of an attempt."""
    process = present()
    assert process is not None
    rank, number = map(int, process.environment[RANK].split("/"))
    directory = records.RunPaths(os.environ["MIDSTREAM_ROOT"], os.environ["RUN_ID"]).attempt(
        int(os.environ["MIDSTREAM_ATTEMPT"])
    )
    code = follow(rank, number, directory.dir, os.environ["RUN_ID"])
    sys.stdout.flush()
    return code
