"""Element types of an imported state: of its arrays, not of the configuration.

Under ``mp: bfloat16`` the first update of Levanter 1.2 makes parameters and the mean of gradients float32, because the
learning rate is; the mean of their squares stays bfloat16. marin-levanter 0.2 rounds the rate, and all stay bfloat16.
"""

from __future__ import annotations

import re

import numpy as np

from midstream_core.precision import Precision
from midstream_engine.config.optimizer import NU_DTYPES
from midstream_engine.interop.exact_numbers import common_dtype
from midstream_engine.interop.foreign_values import ForeignValue
from midstream_engine.interop.levanter.arrays import StoredArray


def apply_stored_types(
    mapping: dict[str, ForeignValue], stored: dict[str, StoredArray], place: str, notes: list[str]
) -> None:
    """Set types of parameters and Adam's moments in ``mapping`` to the arrays' types.

    The moments of other optimizers are float32 here.

    Args:
        mapping: Our configuration.
        stored: Arrays of the checkpoint by name.
        place: Path of the moments.
        notes: Gets a line if the configuration has other types.
    """
    model, mu, nu = (_dtype(stored, prefix) for prefix in ("model/", f"{place}mu/", f"{place}nu/"))
    given = str(mapping["trainer"]["mp"])
    # On a TPU, half is bfloat16 there, and only the arrays show it.
    configured = Precision.parse(re.sub(r"\bhalf\b", nu if nu != "float32" else "half", given))
    precision = configured.with_parameters(common_dtype({model, configured.parameters}))
    nu = nu if nu in NU_DTYPES else "float32"
    mapping["trainer"]["mp"] = str(precision) if precision != Precision.parse(given) else given
    adam = mapping["optimizer"]["type"] == "adam"
    if adam:
        mapping["optimizer"] |= {"mu_dtype": mu, "nu_dtype": nu}
    if precision.parameters != configured.parameters:
        notes.append(
            f"trainer.mp: {given} means {configured.parameters} parameters, but Levanter's updates made them {model}: "
            f"{precision} goes on with those; --cast-parameters {configured.parameters} rounds them"
        )
    if adam and (mu, nu) != ("float32", "float32"):
        notes.append(f"Adam's moments stay as they are stored: mu {mu}, nu {nu}")


def _dtype(stored: dict[str, StoredArray], prefix: str) -> str:
    """Return the type of the arrays whose names begin with ``prefix``."""
    return common_dtype({np.dtype(array.dtype).name for name, array in stored.items() if name.startswith(prefix)})
