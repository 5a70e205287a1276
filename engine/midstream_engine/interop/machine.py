"""Pickles of imported checkpoints: plain values, and the results of ``calls``."""

from __future__ import annotations

from collections.abc import Callable

from midstream_core import restricted_pickle
from midstream_core.restricted_pickle import Global, Vocabulary
from midstream_engine.interop import calls
from midstream_engine.interop.errors import ConversionError, PickleRejectedError
from midstream_engine.interop.foreign_values import TorchValue


def load(data: bytes, persistent: Callable[[object], object]) -> object:
    """Return the object of a pickle, made of plain values, tensors and records.

    ``data``: a pickle of any protocol.

    ``persistent`` returns the objects of persistent ids.

    Raises:
        PickleRejectedError: The pickle is damaged or not allowed. Nothing was executed.
    """
    try:
        return restricted_pickle.load(data, _Calls(persistent))
    except PickleRejectedError:
        raise
    except (restricted_pickle.PickleError, ConversionError) as error:
        raise PickleRejectedError(str(error)) from None


class _Calls(Vocabulary):
    """The names of ``calls.CALLS``, and storages by their persistent ids."""

    def __init__(self, persistent: Callable[[object], object]) -> None:
        self._persistent = persistent

    def allows(self, module: str, name: str) -> bool:
        """Return whether the table has a global."""
        return calls.allows(module, name)

    def call(self, function: Global, arguments: tuple[TorchValue, ...]) -> object:
        """Return what a call stands for; see ``calls.call``."""
        return calls.call(function, arguments)

    def persistent(self, key: object) -> object:
        """Return a storage."""
        return self._persistent(key)
