"""Import of equinox, haliax and optax without packages that are not used here.

The three import kernels for mixtures of experts, layers of their own, statistics, contributed optimizers, and aqt,
which imports flax: a fifth of the time that all imports of a restart take. Stand-ins take the places of those modules
in the meantime; one that is used imports its module then.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_PACKAGES = ("haliax", "optax")  # haliax imports equinox
_QUANTIZATION = "aqt.jax.v2.aqt_dot_general"
# The modules, and the functions that are imported from them by name.
_DEFERRED: dict[str, tuple[str, ...]] = {
    "aqt": (),
    "aqt.jax": (),
    "aqt.jax.v2": (),
    "aqt.jax.v2.config": (),
    _QUANTIZATION: (),
    "equinox.nn": ("inference_mode",),
    "jax.experimental.pallas.ops.tpu.megablox": ("gmm",),
    "jax.scipy.stats": (),
    "jax.scipy.stats.norm": (),
    "optax.contrib": ("DifferentiallyPrivateAggregateState", "differentially_private_aggregate", "dpsgd"),
}


class _StandIn(ModuleType):
    """Stand-in for a module; an attribute that it lacks is that of the module."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # of the import system
            raise AttributeError(name)
        _remove_all()
        return getattr(importlib.import_module(self.__name__), name)


def _remove_all() -> None:
    for name in _DEFERRED:
        if isinstance(sys.modules.get(name), _StandIn):
            del sys.modules[name]


def _function(module: str, name: str) -> Callable[..., object]:
    def call(*arguments: object, **keywords: object) -> object:
        return getattr(importlib.import_module(module), name)(*arguments, **keywords)

    return call


def import_packages() -> None:
    """Import equinox, haliax and optax, unless they are imported already."""
    standing: dict[str, Any] = {name: _StandIn(name) for name in _DEFERRED if name not in sys.modules}
    for name, module in standing.items():
        parent, _, own = name.rpartition(".")
        if parent in standing:
            setattr(standing[parent], own, module)
        for function in _DEFERRED[name]:
            setattr(module, function, _function(name, function))
    if _QUANTIZATION in standing:
        standing[_QUANTIZATION].DotGeneral = Any  # in an annotation alone
    sys.modules.update(standing)
    try:
        for package in _PACKAGES:
            importlib.import_module(package)
    finally:
        _remove_all()
