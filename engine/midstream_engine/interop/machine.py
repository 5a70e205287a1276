"""Pickles of imported checkpoints: plain values, and the results of ``calls``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from midstream_core import restricted_pickle
from midstream_core.restricted_pickle import Global, Vocabulary
from midstream_engine.interop import calls
from midstream_engine.interop.errors import ConversionError, PickleRejectedError


def load(data: bytes, persistent: Callable[[Any], Any]) -> Any:
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

    def __init__(self, persistent: Callable[[Any], Any]) -> None:
        self._persistent = persistent

    def known(self, module: str, name: str) -> bool:
        """Return whether the table has a global."""
        return calls.known(module, name)

    def call(self, function: Global, arguments: tuple[Any, ...]) -> Any:
        """Return what a call stands for; see ``calls.call``."""
        return calls.call(function, arguments)

    def persistent(self, key: Any) -> Any:
        """Return a storage."""
        return self._persistent(key)
