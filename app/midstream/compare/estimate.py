"""The engine's estimate of a run's step on accelerators: fields, and local cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from midstream.errors import RemoteError
from midstream.hosts.rpc.result_checks import printed_value
from midstream.state_directory import make_directory, state_directory
from midstream_core import records
from midstream_core.accelerator_types import AcceleratorType

WHAT = "the engine's estimate"


@dataclass(frozen=True)
class Range:
    """An estimate, and the lowest and highest value that it may have."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Range:
        return Range(self.value * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True)
class Memory:
    """Bytes of one device, as the compiler reports them."""

    peak: int
    arguments: int
    temporary: int


@dataclass(frozen=True)
class Parts:
    """Seconds of a step by what a device does."""

    compute: float
    kernels: float
    exposed: float


@dataclass(frozen=True)
class StepEstimate:
    """The last line of ``midstream_engine.estimate``.

    Fields of the step are None where nothing fits.
    """

    event: Literal["estimate"]
    accelerators: str
    fits: bool
    fits_as_configured: bool
    configured: int  # examples at a time on a device, as the configuration has them
    largest: int | None  # examples at a time that fit
    needed: int | None  # bytes of the last division that was refused; None: none was, or not known
    compile_seconds: float
    devices: int
    device_kind: str
    device_memory: int | None  # bytes
    parameters: int
    state_bytes: int
    batch: int
    tokens: int  # of a step
    steps: int  # of the complete run
    per_device_parallelism: int | None
    accumulation: int | None
    memory: Memory | None = None
    step_seconds: float | None = None
    step_seconds_low: float | None = None
    step_seconds_high: float | None = None
    parts: Parts | None = None
    collective_bytes: float | None = None
    exposed_bytes: float | None = None
    mfu: float | None = None

    @property
    def step(self) -> Range | None:
        """Seconds of a step; None where no division of the batch fits."""
        if self.step_seconds is None or self.step_seconds_low is None or self.step_seconds_high is None:
            return None
        return Range(self.step_seconds, self.step_seconds_low, self.step_seconds_high)


@dataclass(frozen=True)
class CompileProgress:
    """A line about one program, before the last one."""

    event: Literal["compiling", "compiled", "refused"]
    per_device_parallelism: int
    accumulation: int
    needed: int | None = None


def cache_file(engine: str, config: str, overrides: Sequence[str], accelerators: AcceleratorType) -> Path:
    """Return an estimate's file, named by a hash of engine, configuration, topology."""
    key = records.canonical_json([engine, config, list(overrides), accelerators.topology])
    return state_directory() / "compare" / f"{hashlib.sha256(key).hexdigest()}.json"


def cached(path: Path) -> StepEstimate | None:
    """Return the estimate in a file; None if it is missing or of another version."""
    try:
        return printed_value("this machine", WHAT, StepEstimate, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, RemoteError):
        return None


def store(path: Path, estimate: StepEstimate) -> None:
    """Write an estimate for the next comparison."""
    make_directory(path.parent)
    records.write_bytes(str(path), json.dumps(asdict(estimate)).encode())
