"""Rendezvous of several processes: ``trainer.distributed`` of the configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from midstream_engine.config.errors import ConfigError

# jax's own names of environment variables; the configuration wins over them.
_VARIABLES = {
    "coordinator_address": "JAX_COORDINATOR_ADDRESS",
    "num_processes": "JAX_NUM_PROCESSES",
    "process_id": "JAX_PROCESS_ID",
}


@dataclass(frozen=True)
class DistributedConfig:
    """The processes of the attempt.

    Each gets ``--trainer.distributed.coordinator_address H:P --trainer.distributed.num_processes N
    --trainer.distributed.process_id I``, the first two the same on all; JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and
    JAX_PROCESS_ID have the same meaning. Without any: one process.
    """

    coordinator_address: str | None = None  # host:port of process 0, to which the others connect
    num_processes: int | None = None  # of the attempt
    process_id: int | None = None  # this process's number, from 0
    local_device_ids: list[int] = field(default_factory=list)  # devices of this process; empty: all visible ones
    initialize_jax_distributed: bool = False  # true: SLURM or the TPU pod provides all of the above
    initialization_timeout: int = 300  # seconds within which all processes must connect
    heartbeat_timeout: int = 60  # seconds without a heartbeat after which a process counts as failed

    def __post_init__(self) -> None:
        given = [name for name in _VARIABLES if getattr(self, name) is not None]
        if 0 < len(given) < 3:
            missing = _VARIABLES.keys() - set(given)
            raise ConfigError(f"trainer.distributed: {', '.join(sorted(missing))} is missing beside {', '.join(given)}")
        if self.process_id is not None and not 0 <= self.process_id < (self.num_processes or 0):
            raise ConfigError(f"trainer.distributed.process_id: {self.process_id} is not below {self.num_processes}")
        if self.coordinator_address is not None:
            host, _, port = self.coordinator_address.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
                raise ConfigError(
                    f"trainer.distributed.coordinator_address: {self.coordinator_address!r} is not HOST:PORT"
                )
        for name in ("initialization_timeout", "heartbeat_timeout"):
            if getattr(self, name) < 1:
                raise ConfigError(f"trainer.distributed.{name}: {getattr(self, name)} is not a number of seconds")

    @property
    def has_peers(self) -> bool:
        """Whether there is more than this process."""
        return self.coordinator_address is not None or self.initialize_jax_distributed

    def with_environment(self, environment: Mapping[str, str]) -> DistributedConfig:
        """Return the configuration with missing values from the environment."""
        values: dict[str, Any] = {key: environment[name] for key, name in _VARIABLES.items() if environment.get(name)}
        if self.coordinator_address is not None or "coordinator_address" not in values:
            return self
        for key in ("num_processes", "process_id"):
            text = values.get(key, "")
            if text and not text.isdecimal():
                raise ConfigError(f"{_VARIABLES[key]}={text!r} is no number")
            values[key] = int(text) if text else None
        return dataclasses.replace(self, **values)

    def at(self, address: str, count: int, index: int, local: list[int]) -> DistributedConfig:
        """Return the configuration with a measured address and index."""
        return dataclasses.replace(
            self,
            coordinator_address=address,
            num_processes=count,
            process_id=index,
            local_device_ids=self.local_device_ids or local,
        )
