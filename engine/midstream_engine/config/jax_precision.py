"""jax's option for the precision of products, ``trainer.jax_config.jax_default_matmul_precision``.

Levanter passes ``trainer.jax_config`` to ``jax.config.update``. A value of this option with an exact counterpart
becomes that of ``trainer.matmul_precision``; the configuration refuses the others.
"""

from __future__ import annotations

from collections.abc import Mapping

from midstream_core.json_types import JsonObject
from midstream_core.precision import JAX_OPTION, counterpart
from midstream_engine.config import yaml_file
from midstream_engine.config.errors import ConfigError


def with_counterpart(trainer: JsonObject) -> JsonObject:
    """Return the section ``trainer`` with our key in the place of jax's option.

    A section without the option, or with one that has no counterpart, is returned unchanged.

    Raises:
        ConfigError: ``matmul_precision`` has another value.
    """
    options = trainer.get("jax_config")
    if not isinstance(options, Mapping) or JAX_OPTION not in options:
        return trainer
    chosen = counterpart(options[JAX_OPTION], trainer.get("mp"))
    if chosen is None:
        return trainer
    place = getattr(options, "places", {}).get(JAX_OPTION, "")
    # The same value is accepted: a run that is started again has both, in run.yaml and in the flags of its launch.
    if trainer.get("matmul_precision") not in (None, chosen):
        where = f"{place}: " if place and not place.startswith("--") else ""
        raise ConfigError(
            f"{where}trainer.jax_config.{JAX_OPTION} is an alias of trainer.matmul_precision: give one of them"
        )
    result = yaml_file.Mapping(trainer)
    result.places = dict(getattr(trainer, "places", {}))
    result["jax_config"] = {name: item for name, item in options.items() if name != JAX_OPTION}
    result["matmul_precision"], result.places["matmul_precision"] = chosen, place
    return result
