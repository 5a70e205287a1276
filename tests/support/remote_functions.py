"""Functions of `midstream.remote` by their names, as hosts and messages have them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import midstream
from midstream.remote.declarations import Declaration

REMOTE = Path(midstream.__file__).parent / "remote"


def function_of(name: str) -> Callable[..., Any]:
    """The function with the name ``package.module.function``."""
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(f"midstream.remote.{module}"), function)


def declared_functions() -> Iterator[Callable[..., Any]]:
    """Every function of `midstream.remote` that the app may call or start."""
    for path in REMOTE.rglob("*.py"):
        name = ".".join(("midstream.remote", *path.relative_to(REMOTE).with_suffix("").parts))
        for value in vars(importlib.import_module(name)).values():
            own = getattr(value, "__module__", "") == name
            if own and isinstance(getattr(value, "declaration", None), Declaration):
                yield value
