"""Start one attempt of the real engine as several processes on loopback, with two virtual CPU devices each."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from midstream_core import records
from support.engines.engine_runs import DEADLINE, environment
from support.loopback import free_port
from support.paths import CONFIGS

T = TypeVar("T")


class Together:
    """One attempt of run ``r``: a process for each of ``roots``. Equal roots are a shared file system."""

    def __init__(
        self,
        roots: Sequence[Path],
        *flags: str,
        devices: int = 2,
        timeout: int = 60,
        programs: Sequence[Sequence[str]] = (),
        **extra: str,
    ) -> None:
        """Start the processes. ``programs``: what python runs instead of the engine, for each process."""
        self.paths = [records.RunPaths(str(root), "r") for root in roots]
        where = ["--trainer.distributed.coordinator_address", f"127.0.0.1:{free_port()}"]
        where += ["--trainer.distributed.num_processes", str(len(roots))]
        where += ["--trainer.distributed.heartbeat_timeout", str(timeout)]
        program = ["-m", "midstream_engine.train"]
        config = ["--config_path", str(CONFIGS / "gpt2_tiny.yaml"), "--trainer.id", "r", *where]
        self.processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    *(programs[number] if programs else program),
                    *config,
                    "--trainer.distributed.process_id",
                    str(number),
                    *flags,
                ],
                env=environment(root, devices, {"MIDSTREAM_HOST": f"host-{root.name}", **extra}),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for number, root in enumerate(roots)
        ]

    def __enter__(self) -> Together:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(30)
            if process.stdout:
                process.stdout.close()

    def finish(self, timeout: float = DEADLINE) -> list[tuple[int, str]]:
        """Wait for all processes, and return the exit code and log of each."""
        ended = []
        for process in self.processes:
            output, _ = process.communicate(timeout=timeout)
            ended.append((process.returncode, output))
        return ended

    def until(self, look: Callable[[], T | None], timeout: float = DEADLINE) -> T:
        """Return the first result of ``look`` that is not None. Fails, with the logs, if a process exits before."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            answer = look()
            if answer is not None:
                return answer
            if any(process.poll() is not None for process in self.processes):
                raise AssertionError(f"a process ended:\n{self.finish(30)}")
            time.sleep(0.02)
        raise AssertionError(f"nothing within {timeout} s")

    def has_trained(self, attempt: int, step: int) -> Callable[[], bool | None]:
        return lambda: True if any(row["global_step"] >= step for row in rows(self.paths[0], attempt)) else None

    def has_saved(self, attempt: int) -> Callable[[], str | None]:
        def look() -> str | None:
            status = records.Status.read_or_none(self.paths[0].attempt(attempt).status())
            return (
                status.checkpoint if status and status.checkpoint and f"a{attempt:03d}" in status.checkpoint else None
            )

        return look


def rows(paths: records.RunPaths, attempt: int) -> list[dict[str, Any]]:
    """Return the rows of the attempt's metrics.jsonl."""
    path = Path(paths.attempt(attempt).metrics)
    return records.parse_metrics(path.read_text().splitlines()) if path.exists() else []
