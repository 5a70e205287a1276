"""Members of paramiko and of cryptography that have no types."""

from __future__ import annotations

from typing import Any


def untyped(value: object) -> Any:
    """Return ``value``, whose members are read without types.

    paramiko declares no private ones.
    """
    return value
