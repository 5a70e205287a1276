"""jax's own compile cache, kept in the files of `program_files`: checked, atomic, shared through a bucket.

jax's cache has neither: it writes files in place, and one that is partial stays. Its names follow from the program, the
compiler's options and flags, the version of jaxlib, and the topology's fingerprint, which on a CPU includes the
processor's features; the key here adds the versions of all packages that compile.
"""

from __future__ import annotations

import hashlib
import logging
import pathlib
import platform
from importlib import import_module

from midstream_core import records
from midstream_core.json_types import JsonObject
from midstream_engine.runtime.environment import versions
from midstream_engine.runtime.program_files import ProgramFiles, program_files

log = logging.getLogger(__name__)
_OPENED = "get_file_cache"  # of jax's module: opens the cache in a directory


def keep_jax_programs() -> None:
    """Let jax keep its programs in the files of `program_files`, where there are such.

    A version of jax that opens its cache in another way keeps files of its own.
    """
    try:
        jax_cache = import_module("jax._src.compilation_cache")
        interface = import_module("jax._src.compilation_cache_interface").CacheInterface
        opened = getattr(jax_cache, _OPENED)
    except (ImportError, AttributeError) as error:
        log.warning("this version of jax keeps its compile cache to itself: %s; it is not shared", error)
        return
    if getattr(opened, "__module__", "") == __name__:
        return

    class Programs(interface):
        """jax's interface: programs by jax's names."""

        def __init__(self, path: str, files: ProgramFiles) -> None:
            self._path, self._files = pathlib.Path(path), files
            self._environment: JsonObject = {"versions": {**versions(), "machine": platform.machine()}}
            self._digest = hashlib.sha256(records.canonical_json(self._environment)).hexdigest()[:16]

        def get(self, key: str) -> bytes | None:
            return self._files.read(*self._named(key))

        def put(self, key: str, value: bytes) -> None:
            self._files.write(*self._named(key), value)

        def _named(self, key: str) -> tuple[str, JsonObject]:
            return f"{key}-{self._digest}", {"jax": key, **self._environment}

    def open_cache(path: str) -> object:
        files = program_files()
        checks = jax_cache.config.compilation_cache_check_contents.value  # jax compares new programs with its own
        return opened(path) if files is None or checks else (Programs(path, files), path)

    setattr(jax_cache, _OPENED, open_cache)
