"""Options of the compiler by accelerator and mesh.

``trainer.compiler_options`` changes them.

The effects are those on the compiled step of a Llama with 1.24 billion parameters: what a device sends in a step, what
of it nothing hides, and cycles by the compiler's estimate (benchmarks/aot.py, libtpu 0.0.42.1, jax-cuda12-plugin
0.10.2).
"""

from __future__ import annotations

import re

from midstream_core.json_types import JsonObject
from midstream_engine.config.errors import ConfigError
from midstream_engine.runtime.mesh import Layout

# A product of a gathered matrix is otherwise cut into windows of a device's share, so narrow that they cost more than
# they hide. The sums of gradients remain windowed: without windows they are all-reduced, and nothing hides them.
_NO_GATHER_WINDOWS = {"xla_tpu_enable_windowed_einsum_for_all_gather": "False"}
# Gathers a layer's parameters while the layer before is computed; the default on v5e. With only one of the two nothing
# is hidden.
_ASYNC_GATHERS = {
    "xla_enable_async_all_gather": "True",
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "True",
}
# By jax's ``device_kind``. Bytes and cycles from the compiler's defaults to these options.
_TPU: dict[str, dict[str, str]] = {
    # 4x4: sent 26.9 -> 25.6 GB, exposed 2.9 -> 3.0 GB, 12.9 -> 8.3 G cycles.
    "TPU v5 lite": _NO_GATHER_WINDOWS,
    # 2x2x2: sent 54.3 -> 49.4 GB, exposed 14.5 -> 5.1 GB, 9.9 -> 8.3 G cycles.
    "TPU v5": _NO_GATHER_WINDOWS | _ASYNC_GATHERS,
    # 4x4: sent 26.8 -> 25.6 GB, exposed 8.0 -> 3.0 GB, 6.5 -> 3.9 G cycles; without the second group 17.3 GB exposed.
    "TPU v6 lite": _NO_GATHER_WINDOWS | _ASYNC_GATHERS,
    # 2x2x1: sent 54.3 -> 49.4 GB, exposed 1.5 GB with both (its sparse cores send), 7.2 -> 5.6 G cycles.
    "TPU7x": _NO_GATHER_WINDOWS | _ASYNC_GATHERS,
}
# The compiler for GPUs otherwise sums a layer's gradients in one reduce-scatter at the end of the loop's turn, beside
# which nothing is left to compute, and gathers a small layer at once at its beginning. Larger arrays than these are
# sent apart, as soon as they are computed or until they are needed; smaller ones together.
# Eight H100: exposed 13.6 -> 0.0 GB, step by estimate 2.48 -> 2.45 s, temporaries 4.87 -> 4.91 GiB; GPT-2 124M: exposed
# 2.4 -> 0.8 GB, 0.177 -> 0.175 s, temporaries 0.68 -> 0.73 GiB.
_SENT_TOGETHER = 8 << 20  # bytes of complete arrays; the compiler's options are of a device's share of them
_ALIASES = {"TPU v5e": "TPU v5 lite", "TPU v5p": "TPU v5", "TPU v6e": "TPU v6 lite"}
# Parts of names of options that one platform's compiler alone has.
_ONLY = {"tpu": "tpu", "jf": "tpu", "gpu": "gpu", "cpu": "cpu"}


def compile_options(layout: Layout, given: JsonObject) -> dict[str, str]:
    """Return the options for programs of ``layout``.

    Args:
        layout: The mesh.
        given: ``trainer.compiler_options``; a value of None removes an option. An option whose name begins with
            ``xla_tpu_``, ``xla_jf_``, ``xla_gpu_`` or ``xla_cpu_`` is left out on other platforms.
    """
    kind = str(layout.mesh.devices.flat[0].device_kind)
    options = {}
    if layout.platform == "tpu" and layout.batch_shards > 1:
        options = dict(_TPU.get(_ALIASES.get(kind, kind), {}))
    elif layout.platform == "gpu" and layout.batch_shards > 1:
        share = str(_SENT_TOGETHER // layout.batch_shards)
        options = {f"xla_gpu_{sent}_combine_threshold_bytes": share for sent in ("reduce_scatter", "all_gather")}
    for name, value in given.items():
        match = re.match(r"xla_([a-z]+)_", name)
        if match and _ONLY.get(match[1], layout.platform) != layout.platform:
            continue
        if value is None:
            options.pop(name, None)
        else:
            options[name] = str(value).capitalize() if str(value) in ("true", "false") else str(value)
    return options


def unknown_option(error: Exception, given: JsonObject) -> ConfigError | None:
    """Return the error in ``trainer.compiler_options`` that ``error`` reports.

    ``error`` is a compiler's. None for an error of anything else.
    """
    text = " ".join(str(error).split())
    names = [name for name, value in given.items() if value is not None and name in text]
    if not names or not re.search(r"No such compile option|While setting option|Failed to parse", text):
        return None
    return ConfigError(
        f"trainer.compiler_options.{names[0]}: {given[names[0]]!r}: the compiler has no such option or value "
        "(hint: remove it, or set it to null)"
    )
