"""Type of ``train.json``."""

from __future__ import annotations

from typing import Any, TypedDict


class TrainDocument(TypedDict):
    """Content of ``train.json``: the state, and what says where it comes from."""

    state: dict[str, Any]
    provenance: dict[str, Any]
    reference_losses: dict[str, Any] | None
