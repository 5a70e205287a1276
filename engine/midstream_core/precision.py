"""Precision of a run: ``trainer.mp`` and ``trainer.matmul_precision``.

The first is in the notation of jmp, the second has jax's names.

The engine computes with them and the planner predicts their memory. Standard library alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from midstream_core.json_types import JsonObject

_DTYPES = {
    "f32": "float32", "float32": "float32", "full": "float32",
    "bf16": "bfloat16", "bfloat16": "bfloat16",
    "f16": "float16", "float16": "float16", "half": "float16",
}  # fmt: skip
_PARTS = {"p": "parameters", "params": "parameters", "c": "compute", "compute": "compute", "o": "output",
          "output": "output"}  # fmt: skip
HIGHEST, DEFAULT = "highest", "default"  # values of ``trainer.matmul_precision``, by jax's names
JAX_OPTION = "jax_default_matmul_precision"  # in ``trainer.jax_config``, which Levanter passes to jax
# jax has two names for each of these members of ``jax.lax.Precision``. Those without a counterpart are ``high``, also
# named ``tensorfloat32``, and the names of algorithms, such as ``BF16_BF16_F32_X6``.
_COUNTERPARTS = {"highest": HIGHEST, "float32": HIGHEST, "default": DEFAULT, "bfloat16": DEFAULT, None: DEFAULT}


@dataclass(frozen=True)
class Precision:
    """Element types by numpy's names: ``float32``, ``bfloat16`` or ``float16``.

    ``half`` is float16 on every device. (In jmp it is bfloat16 on a TPU, so a migration would change it.)
    """

    parameters: str  # at rest
    compute: str  # of the forward and backward pass
    output: str

    @classmethod
    def parse(cls, text: str) -> Precision:
        """Parse one type for all (``bfloat16``), or parts (``p=f32,c=bfloat16``).

        Parameters are float32 if the parts leave them out; compute follows parameters, and output follows compute.

        Raises:
            ValueError: The text is no policy.
        """
        if "=" not in text:
            dtype = _dtype(text, text)
            return cls(dtype, dtype, dtype)
        types: dict[str, str] = {}
        for setting in text.split(","):
            key, _, name = setting.partition("=")
            if key.strip() not in _PARTS:
                raise ValueError(f"{text!r}: {setting.strip()!r} is no part of a policy")
            types[_PARTS[key.strip()]] = _dtype(name, text)
        parameters = types.get("parameters", "float32")
        compute = types.get("compute", parameters)
        return cls(parameters, compute, types.get("output", compute))

    def __str__(self) -> str:
        """Return the shortest text that ``parse`` reads as this."""
        if self.parameters == self.compute == self.output:
            return self.parameters
        more = "" if self.output == self.compute else f",o={self.output}"
        return f"p={self.parameters},c={self.compute}{more}"

    @property
    def reduced(self) -> bool:
        """Whether a part of the computation has less than float32."""
        return self.parameters != "float32" or self.compute != "float32"

    def of_products(self, chosen: object) -> str | None:
        """Return jax's precision for matrix products; None: the accelerator's default.

        ``chosen`` is ``trainer.matmul_precision``. jax's default for float32 is TF32 on NVIDIA GPUs and bfloat16 on
        TPUs. Products of bfloat16 numbers are exact in each precision, and a higher one takes six times as long on
        TPUs.
        """
        return HIGHEST if self.compute == "float32" and chosen != DEFAULT else None

    def with_parameters(self, dtype: str) -> Precision:
        """Return the same with parameters of ``dtype``."""
        return replace(self, parameters=dtype)


def precision_of(mp: object) -> Precision:
    """Return the precision in a host's configuration; float32 where it is no policy."""
    try:
        return Precision.parse(str(mp or "f32"))
    except ValueError:
        return Precision.parse("f32")


def counterpart(option: object, mp: object) -> str | None:
    """Return the ``matmul_precision`` that equals a value of ``JAX_OPTION``, or None.

    ``highest`` has no counterpart where ``mp`` computes in 16 bits: what is computed in float32 nevertheless, as with
    ``upcast_attn``, has the default precision here.
    """
    option_name = _COUNTERPARTS.get(option) if option is None or isinstance(option, str) else None
    return None if option_name == HIGHEST and precision_of(mp).compute != "float32" else option_name


def levanter_products(trainer: JsonObject) -> str:
    """Return the ``trainer.matmul_precision`` of an imported run of Levanter.

    Where the configuration has neither this key nor ``JAX_OPTION``, jax's default applies.

    Args:
        trainer: The section of Levanter's configuration.
    """
    options = trainer.get("jax_config")
    option = options.get(JAX_OPTION) if isinstance(options, Mapping) else None
    return str(trainer.get("matmul_precision") or counterpart(option, trainer.get("mp")) or HIGHEST)


def maxtext_products(setting: object) -> str:
    """Return the ``trainer.matmul_precision`` of an imported run of MaxText.

    ``setting``: MaxText's; None where its configuration has none.
    """
    return "default" if setting in (None, "default", "bfloat16") else HIGHEST


def rounds_products(mp: object, chosen: object) -> bool:
    """Return whether products round float32 numbers by an accelerator's default.

    Args:
        mp: ``trainer.mp`` of a configuration that was read from a host.
        chosen: Its ``trainer.matmul_precision``.
    """
    precision = precision_of(mp)
    return precision.compute == "float32" and precision.of_products(chosen) is None


def _dtype(name: str, text: str) -> str:
    if name.strip() not in _DTYPES:
        raise ValueError(f"{text!r}: {name.strip()!r} is not one of {', '.join(_DTYPES)}")
    return _DTYPES[name.strip()]
