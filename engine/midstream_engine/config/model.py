"""What is trained: ``model`` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass

import draccus

from midstream_engine.config.errors import ConfigError


@dataclass(frozen=True)
class LmConfig(draccus.ChoiceRegistry):
    """An autoregressive language model; ``type`` names the kind. The fields that every kind has."""

    seq_len: int = 1024
    hidden_dim: int = 768
    num_layers: int = 12
    num_heads: int = 12
    # The rows of the embedding are rounded up to a multiple of this, whatever the mesh; no loss sees the added rows.
    pad_vocab_to_multiple: int = 128

    def __post_init__(self) -> None:
        for name in ("seq_len", "hidden_dim", "num_layers", "num_heads", "pad_vocab_to_multiple"):
            if getattr(self, name) < 1:
                raise ConfigError(f"model.{name}: {getattr(self, name)} is not positive")
        if self.hidden_dim % self.num_heads:
            raise ConfigError(
                f"model.hidden_dim: {self.hidden_dim} is not a multiple of model.num_heads ({self.num_heads})"
            )

    @classmethod
    def default_choice_name(cls) -> str:
        return "gpt2"

    def padded_vocab(self, vocab_size: int) -> int:
        """``vocab_size`` rounded up to ``pad_vocab_to_multiple``."""
        return -(-vocab_size // self.pad_vocab_to_multiple) * self.pad_vocab_to_multiple


@LmConfig.register_subclass("gpt2")
@dataclass(frozen=True)
class Gpt2Config(LmConfig):
    """GPT-2 (Radford et al. 2019): learned positions, pre-LayerNorm, tanh GELU, tied embeddings."""

    mlp_scale: int = 4
    initializer_range: float = 0.02
    layer_norm_epsilon: float = 1e-5
    embed_pdrop: float = 0.0
    resid_pdrop: float = 0.0
    attn_pdrop: float = 0.0
    gradient_checkpointing: bool = True
    # Layer i's attention scores are also divided by i + 1 (Mistral's GPT-2; steadier in low precision).
    scale_attn_by_inverse_layer_idx: bool = False
    use_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("embed_pdrop", "resid_pdrop", "attn_pdrop"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"model.{name}: {getattr(self, name)} is not in [0, 1)")
