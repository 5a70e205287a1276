"""Serialized form of a program that is compiled or read from jax's own cache.

XLA for CPUs loses the functions of a program that was read: serialized again, the program loads, but its first call
fails. The executable of such a program is therefore stored as the bytes that jax read. jax has no public way to them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from typing import Any

from jax import monitoring
from jax.experimental import serialize_executable

_HIT = "/jax/compilation_cache/cache_hits"
_PICKLER = "_JaxPjrtPickler"  # of ``serialize_executable``
Serialized = tuple[bytes, Any, Any]  # content, structure of the arguments, structure of the result


class _Thread(threading.local):
    """Reads of jax from its cache on this thread."""

    hits = 0  # by jax's own count
    content = b""  # of the entry that was read last
    reads: list[tuple[Any, bytes]] | None = None  # executables and their bytes, while a program is made


_thread = _Thread()
_replacing = threading.Lock()


def make_serialized(make: Callable[[], Any]) -> tuple[Any, Serialized | Exception]:
    """Make a program and serialize it.

    Args:
        make: Compiles the program, on this thread, or lets jax read it from its cache.

    Returns:
        The program, and what ``serialize_executable.deserialize_and_load`` takes, or the error of serializing.
    """
    _watch()
    before, reads = _thread.hits, []
    _thread.reads = reads
    try:
        compiled = make()
    finally:
        _thread.reads, _thread.content = None, b""
    try:
        executable = compiled.runtime_executable()
        content = next((content for read, content in reads if read is executable), None)
        if content is not None:
            return compiled, _serialize_as_read(compiled, content)
        if _thread.hits - before > len(reads):
            raise ValueError("jax read it from its cache, and this version of jax does not show its bytes")
        return compiled, serialize_executable.serialize(compiled)
    except Exception as error:  # noqa: BLE001 (of any backend: the program runs all the same)
        return compiled, error


def _serialize_as_read(compiled: Any, content: bytes) -> Serialized:
    """Serialize a program with ``content`` as its executable."""
    executable = compiled.runtime_executable()
    pickler = getattr(serialize_executable, _PICKLER)

    class AsRead(pickler):
        def persistent_id(self, obj: Any) -> Any:
            return ("exec", content) if obj is executable else super().persistent_id(obj)

    with _replacing:
        try:
            setattr(serialize_executable, _PICKLER, AsRead)
            return serialize_executable.serialize(compiled)
        finally:
            setattr(serialize_executable, _PICKLER, pickler)


@cache
def _watch() -> None:
    """Note from now on what jax reads from its cache.

    Where a version of jax has other functions, hits are counted, and their bytes stay unknown.
    """
    monitoring.register_event_listener(_count)
    try:
        jax_cache: Any = import_module("jax._src.compilation_cache")
        extract, read = jax_cache.extract_executable_and_time, jax_cache.get_executable_and_time
    except (ImportError, AttributeError):
        return

    @wraps(extract)
    def noted_extract(*arguments: Any, **named: Any) -> Any:
        found = extract(*arguments, **named)
        if _thread.reads is not None:
            _thread.content = found[0]
        return found

    @wraps(read)
    def noted_read(*arguments: Any, **named: Any) -> Any:
        _thread.content = b""
        found = read(*arguments, **named)
        if _thread.reads is not None and found[0] is not None and _thread.content:
            _thread.reads.append((found[0], _thread.content))
        return found

    jax_cache.extract_executable_and_time = noted_extract
    jax_cache.get_executable_and_time = noted_read


def _count(event: str, **_: Any) -> None:
    if event == _HIT:
        _thread.hits += 1
