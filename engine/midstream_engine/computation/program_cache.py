"""Program cache on disk, keyed by a program's inputs: a restart traces nothing.

jax's own cache needs the traced and lowered program for its key, which takes longer than the rest of a restart with a
small model. Here the key has the inputs: the engine's code, the configuration, the versions, the devices. Left out are
only settings that are known to have no effect, so any other change compiles a new program.

The files are those of ``runtime/program_files.py``, beside jax's. Attempts of several processes use jax's cache alone.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path

import jax
from jax.experimental import serialize_executable

from midstream_core import records
from midstream_core.json_types import JsonObject
from midstream_engine.array_types import Compiled, Device, PyTree
from midstream_engine.computation.serialized_program import make_serialized
from midstream_engine.computation.setup import CompilePlan
from midstream_engine.runtime.environment import versions
from midstream_engine.runtime.program_files import program_files, report_unused

log = logging.getLogger(__name__)
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
_ADDRESSES = (
    "CUDA_VISIBLE_DEVICES", "JAX_COMPILATION_CACHE_DIR", "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID", "NVIDIA_VISIBLE_DEVICES",
)  # fmt: skip


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
    files = program_files() if jax.process_count() == 1 else None
    if files is None:
        return make()
    key = _inputs(setup, name)
    file = f"{name}-{hashlib.sha256(records.canonical_json(key)).hexdigest()}"
    trees = jax.tree.structure((arguments, {})), jax.tree.structure(result)
    content = files.read(file, key)
    if content is not None:
        devices = list(setup.layout.mesh.devices.flat)
        try:
            return serialize_executable.deserialize_and_load(content, *trees, devices[0].client, devices)
        except Exception as error:  # noqa: BLE001 (any error: the program can be compiled again)
            report_unused(os.path.join(files.directory, file), error)
    compiled, form = make_serialized(make)
    try:
        if isinstance(form, Exception):
            raise form
        if form[1:] != trees:
            raise ValueError("its arguments or results have another structure than given")
        files.write(file, key, form[0])
    except Exception as error:  # noqa: BLE001 (no support by the backend, a full disk: the program runs without it)
        log.info("%s is not stored: %s: %s", file, type(error).__name__, " ".join(str(error).split())[:200])
    return compiled


def _inputs(setup: CompilePlan, name: str) -> JsonObject:
    """Return all that the program ``name`` follows from."""
    config = setup.config.resolved()
    devices = list(setup.layout.mesh.devices.flat)
    return {
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
        "topology": _topology(devices),
        "backend": [devices[0].platform, devices[0].client.platform_version],
        "processor": _processor() if devices[0].platform == "cpu" else "",
        "settings": {
            key: value for key, value in os.environ.items() if key.startswith(_SETTINGS) and key not in _ADDRESSES
        },
        "versions": {**versions(), "machine": platform.machine()},
        "engine": engine_digest(),
    }


def _topology(devices: list[Device]) -> str:
    """Return XLA's fingerprint of the devices.

    On a CPU it includes the features that XLA compiles for. jax has no public way to it. Empty where this version of
    jax or the backend has none.
    """
    try:
        client = import_module("jax._src.lib").xla_client
        return str(client.get_topology_for_devices(devices).fingerprint())
    except (ImportError, AttributeError, RuntimeError) as error:
        log.debug("no fingerprint of the topology: %s", error)
        return ""


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
