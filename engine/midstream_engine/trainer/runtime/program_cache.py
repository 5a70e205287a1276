"""Compiled programs on the disk, by what they follow from: a restart traces nothing.

jax's own cache is asked for with a program that has been traced and lowered, which takes longer than all the rest of a
restart with a small model. Here the question is what the program follows from: the engine's code, the configuration,
the versions, the devices. Whatever is not known to be without effect is part of it, so a change makes a program anew.

The files lie beside jax's (``trainer.jax_compilation_cache_dir``) and are as trustworthy as that directory: reading one
is running it. They are neither read nor written where it is not this user's own, or not on a disk.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
from jax import monitoring
from jax.experimental import serialize_executable

from midstream_engine import records
from midstream_engine.trainer.attempt.setup import Plan
from midstream_engine.trainer.attempt.status_file import versions

log = logging.getLogger(__name__)
FOLDER = "programs"
_HIT = "/jax/compilation_cache/cache_hits"
# Of ``trainer``: when and where to write, what to begin with. Of ``data``: where text comes from and how it is cut;
# what programs see of its tokenizer is said apart.
_WITHOUT_EFFECT = (
    "block_cache_bytes", "cache_dir", "checkpointer", "configs", "crash_on_inf", "crash_on_nan", "distributed",
    "eos_token", "id", "initialize_from", "jax_compilation_cache_dir", "load_checkpoint", "load_checkpoint_path",
    "log_dir", "max_bytes", "max_eval_batches", "mixture_block_size", "name", "num_tokenize_workers", "pack",
    "profiler", "profiler_num_steps", "profiler_perfetto_link", "profiler_start_step", "require_accelerator", "root",
    "seed", "shuffle", "steps_per_eval", "text_key", "tokenizer", "tracker", "train_urls", "train_weights",
    "validation_urls",
)  # fmt: skip
_PARTS = ("data", "trainer")
# Environment variables that may have one, but for where things lie and processes meet.
_SETTINGS = ("JAX_", "XLA_", "LIBTPU_", "NVIDIA_", "CUDA_")
_PLACES = ("JAX_COMPILATION_CACHE_DIR", "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
_DIGEST = hashlib.sha256().digest_size  # bytes before a program: to read a torn one would end the process


def stored(setup: Plan, name: str, make: Callable[[], Any], arguments: tuple[Any, ...], result: Any) -> Any:
    """The program ``name`` of ``setup``: from the disk, else what ``make`` compiles, which is stored.

    ``arguments``: what it is called with; ``result``: what it returns; of both, the structure alone counts.
    """
    directory = _directory()
    if directory is None:
        return make()
    path = os.path.join(directory, f"{name}-{_key(setup, name)}")
    trees = jax.tree.structure((arguments, {})), jax.tree.structure(result)
    known = _load(path, *trees, list(setup.layout.mesh.devices.flat))
    if known is not None:
        return known
    before = _hits()
    compiled = make()
    if _hits() == before:
        # XLA for CPUs loses the functions of a program that came from a cache when that is written once more.
        _store(path, compiled, *trees)
    return compiled


@cache
def _hit_list() -> list[str]:
    """Grows by one with each program that jax finds in its own cache, in any thread."""
    found: list[str] = []
    monitoring.register_event_listener(lambda event, **_: found.append(event) if event == _HIT else None)
    return found


def _hits() -> int:
    return len(_hit_list())


def _load(path: str, inside: Any, outside: Any, devices: list[Any]) -> Any:
    """The program in a file; None where there is none that can be run here."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            digest, content = file.read(_DIGEST), file.read()
        if hashlib.sha256(content).digest() != digest:
            raise ValueError("its content is not what was written")
        backend = devices[0].client
        return serialize_executable.deserialize_and_load(content, inside, outside, backend, devices)
    except FileNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001 (whatever is wrong with it: it can be made again)
        log.warning("%s is not used: %s: %s", path, type(error).__name__, " ".join(str(error).split())[:200])
        return None


def _store(path: str, compiled: Any, inside: Any, outside: Any) -> None:
    try:
        content, *trees = serialize_executable.serialize(compiled)
        if trees != [inside, outside]:
            raise ValueError("it is called with, or returns, something else than was said")
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        records.write_bytes(path, hashlib.sha256(content).digest() + content)
    except Exception as error:  # noqa: BLE001 (a backend that cannot, a full disk: the program is there all the same)
        log.info("%s is not stored: %s: %s", path, type(error).__name__, " ".join(str(error).split())[:200])


def _directory() -> str | None:
    """Where the files lie; None where none are wanted: no cache, a bucket, another's directory, several processes, or
    what the compiler does is to be looked at."""
    if "xla_dump_to" in os.environ.get("XLA_FLAGS", ""):
        return None
    settings: Any = jax.config
    root = settings.jax_compilation_cache_dir
    if not root or not settings.jax_enable_compilation_cache or "://" in root or jax.process_count() > 1:
        return None
    directory = os.path.join(root, FOLDER)
    for place in (root, directory):
        if os.path.exists(place) and os.stat(place).st_uid != os.getuid():
            return None
    return directory


def _key(setup: Plan, name: str) -> str:
    config = setup.config.resolved()
    devices = list(setup.layout.mesh.devices.flat)
    said = {
        "program": name,
        "model": config["model"],
        "optimizer": config["optimizer"],
        **{part: {key: value for key, value in config[part].items() if key not in _WITHOUT_EFFECT} for part in _PARTS},
        "vocabulary": setup.tokenizer.vocab_size,
        "eos": setup.eos,
        "mesh": [list(setup.layout.mesh.shape.items()), [device.id for device in devices], devices[0].device_kind],
        "backend": [devices[0].platform, devices[0].client.platform_version],
        "processor": _processor() if devices[0].platform == "cpu" else "",
        "settings": {
            key: value for key, value in os.environ.items() if key.startswith(_SETTINGS) and key not in _PLACES
        },
        "versions": {**versions(), "machine": platform.machine()},
        "engine": engine_digest(),
    }
    return hashlib.sha256(records.canonical_json(said)).hexdigest()


@cache
def engine_digest() -> str:
    """SHA-256 over the engine's own source."""
    total = hashlib.sha256()
    root = Path(__file__).parents[2]
    for path in sorted(root.rglob("*.py")):
        total.update(f"{path.relative_to(root)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


@cache
def _processor() -> str:
    """What this machine's processor can: programs for CPUs are made for exactly that."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))
