"""Activations that a layer stores by name, in numbers.

The names are those of ``model.gradient_checkpointing: qkv+attention``.
"""

from __future__ import annotations

NAMES = ("qkv", "attention", "mlp")


def stored_names(value: object) -> tuple[str, ...]:
    """Return the names in a value such as ``qkv+attention``; none for another kind."""
    names = tuple(value.split("+")) if isinstance(value, str) else ()
    return names if set(names) <= set(NAMES) and len(set(names)) == len(names) else ()


def stored_width(value: object, *, heads: int, kv_heads: int, head_size: int, mlp: int, gated: bool) -> int:
    """Return the numbers that a layer stores of a token for the names in ``value``.

    The layer's input is not counted.

    Args:
        value: Of ``gradient_checkpointing``.
        heads: Of queries.
        kv_heads: Of keys and values.
        head_size: Numbers per head.
        mlp: Width of the MLP.
        gated: Whether the MLP has a gate, a second product of this width.
    """
    widths = {
        "qkv": (heads + 2 * kv_heads) * head_size,  # queries, keys and values
        "attention": heads * head_size,  # the result of attention
        "mlp": mlp * (2 if gated else 1),  # the MLP's inner products
    }
    return sum(widths[name] for name in stored_names(value))
