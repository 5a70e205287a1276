"""Training that all contestants of ``benchmarks/engine.py`` do: model, optimizer's numbers, batches."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import numpy as np

LEARNING_RATE, WEIGHT_DECAY, CLIP = 6e-4, 0.1, 1.0
BETA1, BETA2, EPSILON = 0.9, 0.95, 1e-8
PARAMETERS = "parameters.npz"  # the initial ones, by midstream's names; midstream writes it, others read it


@dataclass(frozen=True)
class Shape:
    """A language model and its batch. ``compute``: float32 or bfloat16; parameters and moments are float32."""

    kind: str  # gpt2 or llama
    vocab: int
    seq_len: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int
    batch: int
    compute: str
    remat: bool  # compute each layer's inside again in the backward pass

    @property
    def head(self) -> int:
        return self.hidden // self.heads

    @property
    def tokens(self) -> int:
        """In a batch."""
        return self.batch * self.seq_len

    @property
    def matmul_precision(self) -> str | None:
        """Precision of products, by jax's name: float32 is float32 on every device, as in midstream."""
        return "highest" if self.compute == "float32" else None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def batches(self, seed: int = 0) -> Batches:
        return Batches(self, seed)


class Batches:
    """Endless batches of random tokens, int32 [batch, position]; the same for every contestant."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self._shape, self._random = shape, np.random.default_rng(seed)

    def next(self) -> np.ndarray:
        # Few different tokens, and steep: so the loss falls, and a contestant that does not learn is seen.
        drawn = self._random.geometric(0.02, (self._shape.batch, self._shape.seq_len))
        return np.minimum(drawn, self._shape.vocab - 2).astype(np.int32)


SHAPES = {
    "gpt2-10m": Shape("gpt2", 4096, 256, 320, 7, 10, 10, 1280, 8, "float32", False),
    "gpt2-124m": Shape("gpt2", 50304, 1024, 768, 12, 12, 12, 3072, 32, "bfloat16", True),
    "llama-1b": Shape("llama", 128256, 4096, 2048, 16, 32, 8, 8192, 8, "bfloat16", True),
    # For trying the program out.
    "gpt2-tiny": Shape("gpt2", 512, 64, 64, 2, 4, 4, 256, 8, "float32", False),
    "llama-tiny": Shape("llama", 512, 64, 64, 2, 4, 2, 192, 8, "bfloat16", True),
}
