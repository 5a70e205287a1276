"""Products with a weight; on a CPU over the rows of all examples.

XLA for CPUs turns the weight's gradient, a sum over batch and position, into a product of one matrix and a transposed
copy of the other. Over rows it sums without the copy. Compilers for TPUs and GPUs choose their own order.
"""

from __future__ import annotations

import haliax as hax
from haliax import Axis, NamedArray

from midstream_engine.models.sharding import mesh_platform

_ROWS = "rows"


def row_product(x: NamedArray, weight: NamedArray, In: tuple[Axis, ...]) -> NamedArray:
    """Return the product over ``In``.

    The product has the axes of ``x`` without ``In``, then the axes of ``weight``.

    Args:
        x: [..., In...] in any order.
        weight: [In..., ...] in any order.
        In: The axes that both have.
    """
    names = {axis.name for axis in In}
    rest = tuple(axis for axis in x.axes if axis.name not in names)
    if len(rest) < 2 or mesh_platform() != "cpu":
        return hax.dot(x, weight, axis=In)
    rows = x.rearrange((*rest, *In)).flatten_axes(rest, _ROWS)
    return hax.dot(rows, weight, axis=In).unflatten_axis(_ROWS, rest)
