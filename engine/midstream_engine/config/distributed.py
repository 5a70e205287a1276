"""How several processes find each other: ``trainer.distributed`` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

from midstream_engine.config.errors import ConfigError


@dataclass(frozen=True)
class DistributedConfig:
    """Arguments of ``jax.distributed.initialize``. Nothing given: one process; jax finds TPU pods and SLURM itself
    where ``initialize_jax_distributed`` asks it to."""

    coordinator_address: str | None = None  # host:port of process 0
    num_processes: int | None = None  # in all
    process_id: int | None = None  # this process's number, from 0
    local_device_ids: list[int] = field(default_factory=list)  # devices of this process; empty: all that it sees
    initialize_jax_distributed: bool = False  # true: let jax find the other processes

    def __post_init__(self) -> None:
        given = [name for name in ("coordinator_address", "num_processes", "process_id") if self._has(name)]
        if 0 < len(given) < 3:
            missing = {"coordinator_address", "num_processes", "process_id"} - set(given)
            raise ConfigError(f"trainer.distributed: {', '.join(sorted(missing))} is missing beside {', '.join(given)}")
        if self.process_id is not None and not 0 <= self.process_id < (self.num_processes or 0):
            raise ConfigError(f"trainer.distributed.process_id: {self.process_id} is not below {self.num_processes}")

    def _has(self, name: str) -> bool:
        return getattr(self, name) is not None

    @property
    def wanted(self) -> bool:
        """Whether there is anything to start."""
        return self.coordinator_address is not None or self.initialize_jax_distributed
