"""The arrays of the engine's state, computed from a configuration alone.

A plan uses them where no checkpoint of the engine exists yet. A test compares them with the engine's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from midstream.errors import MidstreamError
from midstream.migrate.journal.json_values import section
from midstream_core.json_types import JsonObject, RunConfig
from midstream_core.precision import precision_of
from midstream_core.records import ArrayEntry

MAX_AXIS = 2**31 - 1
ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}
_MOMENTS = {"adam": ("mu", "nu"), "adopt": ("mu", "nu"), "cautious": ("mu", "nu"), "lion": ("mu",), "muon": ("mu",)}
_Shape = Mapping[str, int]  # length by axis, in order
_Parts = tuple[_Shape | None, _Shape | None]  # weight and bias; None: the model has none


def state_arrays(config: JsonObject, rows: int) -> list[ArrayEntry]:
    """Return the large arrays of the state: parameters, moments, averages.

    Counts and the key are left out.

    Muon, which has one moment for matrices and two for the rest, is counted with two for embedding and head.

    Args:
        config: Content of a run.yaml.
        rows: Rows of the embedding, padding included.

    Raises:
        MidstreamError: The model is of an unknown type, or a number is missing or malformed.
    """
    model, trainer = section(config, "model"), section(config, "trainer")
    try:
        shapes = _shapes(model, rows)
        _check(shapes)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise MidstreamError(f"the model's configuration cannot be read: {repr(error)[:200]}") from None
    dtype = precision_of(trainer.get("mp")).parameters
    parameters = [_entry(f"model/{name}", shape, dtype) for name, shape in shapes.items()]
    optimizer = str(section(config, "optimizer").get("type") or "adam")
    arrays = list(parameters)
    for moment in _MOMENTS.get(optimizer, _MOMENTS["adam"]):
        arrays += [_renamed(parameter, f"optimizer/{optimizer}/{moment}/", "float32") for parameter in parameters]
    if optimizer == "muon":
        matrices = [parameter for parameter in parameters if "layers" not in parameter.axes or len(parameter.axes) < 3]
        arrays += [_renamed(matrix, "optimizer/adam/nu/", "float32") for matrix in matrices]
    if trainer.get("model_averaging"):
        arrays += [_renamed(parameter, "average/model/", "float32") for parameter in parameters]
    return arrays


def _check(shapes: Mapping[str, _Shape]) -> None:
    for name, shape in shapes.items():
        wrong = next((axis for axis, length in shape.items() if not 0 <= length <= MAX_AXIS), None)
        if wrong is not None:
            raise ValueError(f"{name} cannot have this length of the axis {wrong}")


def size_of(array: ArrayEntry) -> int:
    """Return an array's bytes."""
    return math.prod(array.shape) * ITEMSIZE[array.dtype]


def without_embedding(config: JsonObject) -> tuple[int, int]:
    """Return the state's bytes without embedding and head rows, and bytes of one row.

    The row is counted in both embedding and head.
    """
    without_rows, with_row = (sum(map(size_of, state_arrays(config, rows))) for rows in (0, 1))
    return without_rows, with_row - without_rows


def _entry(name: str, shape: _Shape, dtype: str) -> ArrayEntry:
    return ArrayEntry(name=name, axes=list(shape), shape=list(shape.values()), dtype=dtype, grid=[], objects=[])


def _renamed(array: ArrayEntry, prefix: str, dtype: str) -> ArrayEntry:
    return replace(array, name=prefix + array.name.removeprefix("model/"), dtype=dtype)


def _shapes(model: RunConfig, rows: int) -> dict[str, _Shape]:
    """Return the axes of each parameter by its name in the model."""
    kind = model.get("type", "gpt2")
    hidden, heads = int(model["hidden_dim"]), int(model["num_heads"])
    embed = {"embed": hidden}
    size = {"head_size": int(model.get("head_dim") or hidden // heads)}
    head, qkv = {"heads": heads, **size}, {"qkv": 3, "heads": heads, **size}
    layers = {"layers": int(model["num_layers"])}
    if kind == "gpt2":
        width = {"mlp": hidden * int(model.get("mlp_scale") or 4)}
        bias = bool(model.get("use_bias", True))
        block: dict[str, _Parts] = {
            "ln_1": (embed, embed if bias else None),
            "attn/qkv": ({**embed, **qkv}, qkv if bias else None),
            "attn/proj": ({**head, **embed}, embed if bias else None),
            "ln_2": (embed, embed if bias else None),
            "mlp/up": ({**embed, **width}, width if bias else None),
            "mlp/down": ({**width, **embed}, embed if bias else None),
        }
        ends: dict[str, _Parts] = {
            "position_embeddings": ({"position": int(model["seq_len"]), **embed}, None),
            "ln_f": (embed, embed if bias else None),
        }
        tied = True
    elif kind == "llama":
        width = {"mlp": int(model["intermediate_dim"])}
        keys = {"kv_heads": int(model.get("num_kv_heads") or heads), **size}
        biases = bool(model.get("use_bias"))
        attention = biases if model.get("attention_bias") is None else bool(model["attention_bias"])
        mlp = biases if model.get("mlp_bias") is None else bool(model["mlp_bias"])
        norm = (embed if model.get("use_layer_norm_weight", True) else None, None)
        block = {
            "input_layernorm": norm,
            "self_attn/q_proj": ({**embed, **head}, head if attention else None),
            "self_attn/k_proj": ({**embed, **keys}, keys if attention else None),
            "self_attn/v_proj": ({**embed, **keys}, keys if attention else None),
            "self_attn/o_proj": ({**head, **embed}, embed if attention else None),
            "post_attention_layernorm": norm,
            "mlp/gate_proj": ({**embed, **width}, width if mlp else None),
            "mlp/up_proj": ({**embed, **width}, width if mlp else None),
            "mlp/down_proj": ({**width, **embed}, embed if mlp else None),
        }
        ends = {"norm": norm}
        tied = bool(model.get("tie_word_embeddings"))
    elif kind == "neox":
        width = {"mlp": int(model.get("intermediate_dim") or 4 * hidden)}
        attention = bool(model.get("attention_bias", True))
        block = {
            "input_layernorm": (embed, embed),
            "attention/qkv": ({**embed, **qkv}, qkv if attention else None),
            "attention/dense": ({**head, **embed}, embed if attention else None),
            "post_attention_layernorm": (embed, embed),
            "mlp/up": ({**embed, **width}, width),
            "mlp/down": ({**width, **embed}, embed),
        }
        ends = {"final_layer_norm": (embed, embed)}
        tied = bool(model.get("tie_word_embeddings"))
    else:
        raise MidstreamError(f"a model of type {kind!r} is not known", "known types: gpt2, llama, neox")
    vocab = {"vocab": rows}
    ends["token_embeddings"] = ({**vocab, **embed}, None)
    if not tied:
        ends["lm_head"] = ({**embed, **vocab}, None)
    shapes: dict[str, _Shape] = {}
    for name, parts in (
        *ends.items(),
        *((f"blocks/stacked/{name}", tuple(p and {**layers, **p} for p in parts)) for name, parts in block.items()),
    ):
        shapes |= {f"{name}/{leaf}": shape for leaf, shape in zip(("weight", "bias"), parts, strict=True) if shape}
    return shapes
