"""The state that is saved: AdamW's on a GPT-2-shaped model, over virtual CPU devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MIB = 1 << 20


def shapes(mib: int) -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
    """Arrays of one copy of the parameters, together about ``mib / 3`` MiB: axes and shapes like those of GPT-2."""
    embed, mlp, vocab = 1024, 4096, 8192
    layer = 4 * (4 * embed * embed + 2 * embed * mlp + 2 * embed + mlp)
    layers = max(1, round((mib * MIB / 3 - 4 * vocab * embed) / layer))
    return {
        "token_embeddings": (("vocab", "embed"), (vocab, embed)),
        "blocks.attn.qkv": (("layers", "qkv", "heads", "embed"), (layers, 3, embed, embed)),
        "blocks.attn.out": (("layers", "heads", "embed"), (layers, embed, embed)),
        "blocks.mlp.up": (("layers", "mlp", "embed"), (layers, mlp, embed)),
        "blocks.mlp.down": (("layers", "embed", "mlp"), (layers, embed, mlp)),
        "blocks.ln.weight": (("layers", "embed"), (layers, embed)),
        "blocks.ln.bias": (("layers", "embed"), (layers, embed)),
    }


class Case:
    """One state on one mesh, and where it is to be saved. ``save`` and ``restore`` return seconds."""

    def __init__(self, room: Path, mib: int, devices: int, *, filled: bool = True) -> None:
        import jax
        import numpy as np
        from jax.sharding import Mesh

        self.room, self.devices = room, devices
        self.mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
        self.other = Mesh(np.array(jax.devices()[: 2 * devices]).reshape(devices, 2), ("data", "model"))
        self.shapes = {f"{part}.{name}": found for part in ("model", "mu", "nu") for name, found in shapes(mib).items()}
        self.state = self._fill() if filled else {}
        self.bytes = sum(value.nbytes for value in self.state.values())

    def sharding(self, name: str, mesh: Any) -> Any:
        from jax.sharding import NamedSharding, PartitionSpec

        mapped = {"embed": "data", "mlp": "model", "heads": "model"}
        axes = self.shapes[name][0]
        return NamedSharding(
            mesh, PartitionSpec(*(m if (m := mapped.get(a)) in mesh.axis_names else None for a in axes))
        )

    def _fill(self) -> dict[str, Any]:
        import jax
        import jax.numpy as jnp

        def made(name: str, number: int) -> Any:
            shape, sharding = self.shapes[name][1], self.sharding(name, self.mesh)

            def values() -> Any:
                # Mixed indices: a generator of random numbers would take several times the array's memory.
                mixed = jnp.uint32(number)
                for axis in range(len(shape)):
                    mixed = (mixed ^ jax.lax.broadcasted_iota(jnp.uint32, shape, axis)) * jnp.uint32(2654435761)
                    mixed = mixed ^ (mixed >> 15)
                return mixed.astype(jnp.float32) * 2.0**-32

            return jax.block_until_ready(jax.jit(values, out_shardings=sharding)())

        return {name: made(name, number) for number, name in enumerate(self.shapes)}

    def template(self, mesh: Any) -> dict[str, Any]:
        import jax

        return {
            name: jax.ShapeDtypeStruct(shape, "float32", sharding=self.sharding(name, mesh))
            for name, (_, shape) in self.shapes.items()
        }
