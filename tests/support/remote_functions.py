"""Functions of `midstream_host` by their names, as hosts and messages have them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import midstream_host
from midstream_host.declarations import Declaration

REMOTE = Path(midstream_host.__file__).parent


def function_of(name: str) -> Callable[..., Any]:
    """The function with the name ``package.module.function``."""
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(f"midstream_host.{module}"), function)


def declared_functions() -> Iterator[Callable[..., Any]]:
    """Every function of `midstream_host` that the app may call or start."""
    for path in REMOTE.rglob("*.py"):
        if REMOTE / "driver" in path.parents and path.parent.name != "reshard":  # programs of an attempt
            continue
        name = ".".join(("midstream_host", *path.relative_to(REMOTE).with_suffix("").parts))
        for value in vars(importlib.import_module(name)).values():
            own = getattr(value, "__module__", "") == name
            if own and isinstance(getattr(value, "declaration", None), Declaration):
                yield value
