"""Checkpoints of GPT-NeoX: the fixtures, copies of them, and changes in the copies."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from midstream_engine.interop.archive import TorchFile
from midstream_engine.interop.calls import Record, Tensor
from midstream_engine.interop.neox.architecture import Choices
from midstream_engine.interop.neox.importer import open_neox
from support.imports import torch_files
from support.paths import FIXTURES

NEOX = FIXTURES / "neox"


# Most fixtures are of present NeoX, without a record of it; one shows that it is of an old one.
PRESENT = Choices(gqa_layout="blocked", rms_epsilon="inside")


def choices_of(path: Path | str) -> Choices:
    return Choices() if "old" in str(path) else PRESENT


def filled(path: Path | str) -> dict[str, np.ndarray]:
    """Return every array that the imported checkpoint has."""
    adopted = open_neox(str(path), choices_of(path))
    found = {array.name: array.value() for array in adopted.arrays}
    adopted.verify()
    return found


def plain(value: Any) -> Any:
    """Return the value with tensors as arrays, without records."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(item) for item in value)
    if isinstance(value, Record):
        return None
    return np.array(value.read()) if isinstance(value, Tensor) else value


def copy_of(name: str, target: Path) -> Path:
    shutil.copytree(NEOX / name, target)
    return target / "global_step3"


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    value = plain(TorchFile(str(path)).value)
    change(value)
    torch_files.save(path, value)
