"""Start the real engine with a tiny configuration, and read its run directory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from midstream_core import records
from support.paths import CONFIGS

# Programs of tests are small and run a few times: most of their time would go into making them fast.
# XLA ends a process at a flag that it does not have; jaxlib 0.12 has no other emitters.
_EMITTERS = " --xla_cpu_use_fusion_emitters=false" if metadata.version("jaxlib").startswith("0.10.") else ""
QUICK = f"--xla_backend_optimization_level=0{_EMITTERS}"
# Seconds for an engine to get anywhere, on a machine that has other work. pytest ends a test after 600.
DEADLINE = 540.0
T = TypeVar("T")


def environment(root: Path, devices: int, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a clean environment in which jax has ``devices`` virtual CPU devices."""
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("MIDSTREAM_", "JAX_", "XLA_", "RUN_"))
    }
    return {
        **kept,
        "MIDSTREAM_ROOT": str(root),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} {QUICK}",
        **(extra or {}),
    }


class Engine:
    """One attempt of run ``r`` as a process.

    ``program``: Python text that calls ``train.main`` itself. ``prefix``: words before the command.
    """

    def __init__(
        self,
        root: Path,
        *flags: str,
        devices: int = 2,
        run_id: str = "r",
        program: str = "",
        prefix: Sequence[str] = (),
        **extra: str,
    ) -> None:
        self.paths = records.RunPaths(str(root), run_id)
        start = ["-c", program] if program else ["-m", "midstream_engine.train"]
        command = [sys.executable, *start, "--config_path", str(CONFIGS / "gpt2_tiny.yaml")]
        self.process = subprocess.Popen(
            [*prefix, *command, "--trainer.id", run_id, *flags],
            env=environment(root, devices, extra),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        if self.process.stdout:
            self.process.stdout.close()

    def finish(self, timeout: float = DEADLINE) -> tuple[int, str]:
        """Wait for the process, and return its exit code and log."""
        output, _ = self.process.communicate(timeout=timeout)
        return self.process.returncode, output

    def until(self, look: Callable[[], T | None], timeout: float = DEADLINE) -> T:
        """Return the first result of ``look`` that is not None. Fails, with the log, if the engine exits before."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            answer = look()
            if answer is not None:
                return answer
            if self.process.poll() is not None:
                raise AssertionError(f"the engine ended with {self.process.returncode}:\n{self.finish()[1]}")
            time.sleep(0.02)
        raise AssertionError(f"nothing within {timeout} s; status {self.status(self.attempts()[-1])}")

    def attempts(self) -> list[int]:
        return sorted(int(name) for name in os.listdir(self.paths.attempts))

    def status(self, attempt: int) -> records.Status | None:
        return records.Status.read_or_none(self.paths.attempt(attempt).status())

    def rows(self, attempt: int) -> list[dict[str, Any]]:
        path = Path(self.paths.attempt(attempt).metrics)
        return records.parse_metrics(path.read_text().splitlines()) if path.exists() else []

    def has_trained(self, attempt: int, step: int) -> Callable[[], bool | None]:
        """Return a condition for ``until``: the attempt has logged ``step``."""
        return lambda: True if any(row["global_step"] >= step for row in self.rows(attempt)) else None


def held(file: Path, *parts: bytes) -> None:
    """Assert that a file contains these parts. W&B writes it in a process of its own, perhaps after the run's end."""
    deadline = time.monotonic() + 60
    while missing := [part for part in parts if part not in file.read_bytes()]:
        assert time.monotonic() < deadline, missing
        time.sleep(0.05)
