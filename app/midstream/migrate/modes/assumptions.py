"""Speeds and times that are assumed until something has measured them."""

from __future__ import annotations

DEFAULT_COPY_SPEED = 200e6  # bytes a second of a verified copy
DEFAULT_DISK_SPEED = 400e6  # bytes a second of a save with hashing
ENGINE_START_SECONDS = 6.0  # to start an interpreter with jax
COMMAND_SECONDS = 1.0  # until the engine has read the stop command
REHEARSED_STEPS = 3  # `midstream_engine.attempt.standby`
CERTIFY_SECONDS = 1.0  # without waiting for further steps
