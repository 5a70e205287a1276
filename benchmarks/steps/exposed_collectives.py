"""The collectives of a program that nothing hides, by array: what exposes how much."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

PART = 0.01  # of all exposed bytes: smaller ones are summed


def exposed(found: Iterable[Any]) -> list[dict[str, Any]]:
    """Return kind, array, runs and bytes of each exposed collective, the largest first.

    Those of the same kind and array are one. Of several arrays sent together the largest is named.

    Args:
        found: ``midstream_engine.compiled_program.collectives.Collective``.
    """
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for one in found:
        if one.exposed:
            dtype, shape = max(zip(one.dtypes, one.shapes, strict=True), key=lambda array: math.prod(array[1]))
            into = sums[one.kind, f"{dtype}[{','.join(map(str, shape))}]"]
            into[0] += one.times
            into[1] += one.nbytes
    least = PART * sum(nbytes for _, nbytes in sums.values())
    ordered = sorted(sums.items(), key=lambda item: -item[1][1])
    rows = [
        {"kind": kind, "array": array, "runs": round(runs), "bytes": nbytes}
        for (kind, array), (runs, nbytes) in ordered
        if nbytes >= least
    ]
    rest = [item for item in ordered if item[1][1] < least]
    if rest:
        runs, nbytes = (sum(item[1][part] for item in rest) for part in (0, 1))
        rows.append({"kind": "others", "array": "-", "runs": round(runs), "bytes": nbytes})
    return rows
