"""Program cache on disk, keyed by a program's inputs: a restart traces nothing.

jax's own cache needs the traced and lowered program for its key, which takes longer than the rest of a restart with a
small model. Here the key has the inputs: the engine's code, the configuration, the versions, the devices. Left out are
only settings that are known to have no effect, so any other change compiles a new program.

The files are stored beside jax's (``trainer.jax_compilation_cache_dir``) and need the same trust as that directory:
loading a program runs code from it. No file is read or written if the directory belongs to another user or is a bucket.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable

from midstream_core import records
from midstream_core.json_types import JsonValue
from midstream_engine.array_types import Compiled, Device, PyTree
from midstream_engine.computation.serialized_program import Serialized, make_serialized
from midstream_engine.computation.setup import CompilePlan
from midstream_engine.runtime.environment import versions

log = logging.getLogger(__name__)
FOLDER = "programs"
UNUSED_SECONDS = 30 * 86400.0  # after which a program is removed: each version of the engine has its own
# Of ``trainer``: when and where to write, what to start from. Of ``data``: where text comes from and how it is packed;
# the key has the tokenizer's properties that programs depend on separately.
_WITHOUT_EFFECT = (
    "block_cache_bytes", "cache_dir", "checkpointer", "configs", "crash_on_inf", "crash_on_nan", "distributed",
    "eos_token", "id", "ignore_token_id", "initialize_from", "initialize_model_from",
    "jax_compilation_cache_dir", "load_checkpoint", "load_checkpoint_path",
    "log_dir", "max_bytes", "max_eval_batches", "mixture_block_size", "name", "num_tokenize_workers", "pack",
    "profiler", "profiler_num_steps", "profiler_perfetto_link", "profiler_start_step", "require_accelerator", "root",
    "seed", "shuffle", "steps_per_eval", "text_key", "tokenizer", "tracker", "train_urls", "train_weights",
    "validation_urls",
)  # fmt: skip
_PARTS = ("data", "trainer")
# Prefixes of environment variables that may have an effect, and variables with these prefixes that have none.
_SETTINGS = ("JAX_", "XLA_", "LIBTPU_", "NVIDIA_", "CUDA_")
_ADDRESSES = ("JAX_COMPILATION_CACHE_DIR", "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
_DIGEST = hashlib.sha256().digest_size  # bytes before a program: loading a partial one would crash the process


def cached_program(
    setup: CompilePlan, name: str, make: Callable[[], Compiled], arguments: tuple[PyTree, ...], result: object
) -> Compiled:
    """Load the program ``name`` of ``setup`` from disk, or compile and store it.

    Args:
        setup: The plan that the program follows from.
        name: Of the program.
        make: Compiles it.
        arguments: Of the program; only their tree structure matters.
        result: Of the program; only its tree structure matters.
    """
    directory = _directory()
    if directory is None:
        return make()
    path = os.path.join(directory, f"{name}-{_key(setup, name)}")
    trees = jax.tree.structure((arguments, {})), jax.tree.structure(result)
    program = _load(path, *trees, list(setup.layout.mesh.devices.flat))
    if program is not None:
        return program
    compiled, form = make_serialized(make)
    _store(path, form, trees)
    return compiled


def _load(path: str, inside: object, outside: object, devices: list[Device]) -> Compiled:
    """Load the program in a file; return None if there is none that can run here."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            digest, content = file.read(_DIGEST), file.read()
        if hashlib.sha256(content).digest() != digest:
            raise ValueError("its content has changed since it was written")
        backend = devices[0].client
        loaded = serialize_executable.deserialize_and_load(content, inside, outside, backend, devices)
    except FileNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001 (any error: the program can be compiled again)
        log.warning("%s is not used: %s: %s", path, type(error).__name__, " ".join(str(error).split())[:200])
        return None
    with contextlib.suppress(OSError):  # another attempt removes it, or the disk is read-only
        os.utime(path)
    return loaded


def _store(path: str, form: Serialized | Exception, key_parts: tuple[JsonValue, JsonValue]) -> None:
    try:
        if isinstance(form, Exception):
            raise form
        content, *trees = form
        if trees != list(key_parts):
            raise ValueError("its arguments or results have another structure than given")
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        records.write_bytes(path, hashlib.sha256(content).digest() + content)
        _remove_unused(os.path.dirname(path))
    except Exception as error:  # noqa: BLE001 (no support by the backend, a full disk: the program runs without it)
        log.info("%s is not stored: %s: %s", path, type(error).__name__, " ".join(str(error).split())[:200])


def _remove_unused(directory: str) -> None:
    """Remove programs that were not loaded for a long time."""
    oldest = time.time() - UNUSED_SECONDS
    with os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # another attempt removes it, too
                if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mtime < oldest:
                    os.unlink(entry.path)


def _directory() -> str | None:
    """Return the directory of the files; None if programs are not cached.

    Nothing is cached without a compile cache, with one in a bucket or of another user, with several processes, and when
    XLA dumps its programs, for which they have to be compiled.
    """
    if "xla_dump_to" in os.environ.get("XLA_FLAGS", ""):
        return None
    settings: Any = jax.config
    root = settings.jax_compilation_cache_dir
    if not root or not settings.jax_enable_compilation_cache or "://" in root or jax.process_count() > 1:
        return None
    directory = os.path.join(root, FOLDER)
    for path in (root, directory):
        if os.path.exists(path) and os.stat(path).st_uid != os.getuid():
            return None
    return directory


def _key(setup: CompilePlan, name: str) -> str:
    config = setup.config.resolved()
    devices = list(setup.layout.mesh.devices.flat)
    inputs = {
        "program": name,
        "model": config["model"],
        "optimizer": config["optimizer"],
        "z_loss_weight": config["z_loss_weight"],
        **{
            section: {key: value for key, value in config[section].items() if key not in _WITHOUT_EFFECT}
            for section in _PARTS
        },
        "vocabulary": setup.tokenizer.vocab_size,
        "eos": setup.eos,
        "mesh": [list(setup.layout.mesh.shape.items()), [device.id for device in devices], devices[0].device_kind],
        "backend": [devices[0].platform, devices[0].client.platform_version],
        "processor": _processor() if devices[0].platform == "cpu" else "",
        "settings": {
            key: value for key, value in os.environ.items() if key.startswith(_SETTINGS) and key not in _ADDRESSES
        },
        "versions": {**versions(), "machine": platform.machine()},
        "engine": engine_digest(),
    }
    return hashlib.sha256(records.canonical_json(inputs)).hexdigest()


@cache
def engine_digest() -> str:
    """Return the SHA-256 over the engine's source."""
    total = hashlib.sha256()
    root = Path(__file__).parents[2]
    for path in sorted(root.rglob("*.py")):
        total.update(f"{path.relative_to(root)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


@cache
def _processor() -> str:
    """Return the processor's features, for which programs for CPUs are compiled."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))
