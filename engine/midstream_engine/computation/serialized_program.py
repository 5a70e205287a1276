"""Serialized form of a program that is compiled or read from jax's own cache.

XLA for CPUs loses the functions of a program that was read: serialized again, the program loads, but its first call
fails. The executable of such a program is therefore stored as the bytes that jax read. jax has no public way to them.
A program is stored only if it was seen to be compiled or read here: a version of jax may have other functions for both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from typing import Any

from jax.experimental import serialize_executable

from midstream_engine.array_types import Compiled, PyTree

_PICKLER = "_JaxPjrtPickler"  # of ``serialize_executable``
Serialized = tuple[bytes, PyTree, PyTree]  # content, structure of the arguments, structure of the result


class _Seen:
    """Executables that jax compiled and read while a program was made."""

    def __init__(self) -> None:
        self.compiled: list[Compiled] = []
        self.read: list[tuple[Compiled, bytes]] = []  # with their bytes
        self.content = b""  # of the entry of jax's cache that was read last


class _Thread(threading.local):
    seen: _Seen | None = None  # of the program that is made on this thread


_thread = _Thread()
_replacing = threading.Lock()


def make_serialized(make: Callable[[], Compiled]) -> tuple[Compiled, Serialized | Exception]:
    """Make a program and serialize it.

    Args:
        make: Compiles the program, on this thread, or lets jax read it from its cache.

    Returns:
        The program, and what ``serialize_executable.deserialize_and_load`` takes, or the error of serializing.
    """
    _watch()
    seen = _thread.seen = _Seen()
    try:
        compiled = make()
    finally:
        _thread.seen = None
    try:
        executable = compiled.runtime_executable()
        for read, content in seen.read:
            if read is executable:
                return compiled, _serialize_as_read(compiled, content)
        if not any(executable_seen is executable for executable_seen in seen.compiled):
            raise ValueError("this version of jax does not show whether it has compiled or read it")
        return compiled, serialize_executable.serialize(compiled)
    except Exception as error:  # noqa: BLE001 (of any backend: the program runs all the same)
        return compiled, error


def _serialize_as_read(compiled: Compiled, content: bytes) -> Serialized:
    """Serialize a program with ``content`` as its executable."""
    executable = compiled.runtime_executable()
    pickler = getattr(serialize_executable, _PICKLER)
    replaced = False

    class AsRead(pickler):
        def persistent_id(self, obj: object) -> object:
            nonlocal replaced
            if obj is not executable:
                return super().persistent_id(obj)
            replaced = True
            return "exec", content

    with _replacing:
        try:
            setattr(serialize_executable, _PICKLER, AsRead)
            serialized = serialize_executable.serialize(compiled)
        finally:
            setattr(serialize_executable, _PICKLER, pickler)
    if not replaced:
        raise ValueError("this version of jax serializes it in another way")
    return serialized


@cache
def _watch() -> None:
    """Note from now on what jax compiles and what it reads from its cache.

    Nothing is noted if this version of jax has other functions for it.
    """
    try:
        jax_cache: Any = import_module("jax._src.compilation_cache")
        compiler: Any = import_module("jax._src.compiler")
        extract, read = jax_cache.extract_executable_and_time, jax_cache.get_executable_and_time
        compile_and_load = compiler.backend_compile_and_load
    except (ImportError, AttributeError):
        return

    @wraps(extract)
    def noted_extract(*arguments: PyTree, **named: object) -> object:
        extracted = extract(*arguments, **named)
        if _thread.seen is not None:
            _thread.seen.content = extracted[0]
        return extracted

    @wraps(read)
    def noted_read(*arguments: PyTree, **named: object) -> object:
        if _thread.seen is not None:
            _thread.seen.content = b""
        loaded = read(*arguments, **named)
        if _thread.seen is not None and loaded[0] is not None and _thread.seen.content:
            _thread.seen.read.append((loaded[0], _thread.seen.content))
        return loaded

    @wraps(compile_and_load)
    def noted_compile(*arguments: PyTree, **named: object) -> object:
        compiled = compile_and_load(*arguments, **named)
        if _thread.seen is not None:
            _thread.seen.compiled.append(compiled)
        return compiled

    jax_cache.extract_executable_and_time = noted_extract
    jax_cache.get_executable_and_time = noted_read
    compiler.backend_compile_and_load = noted_compile
