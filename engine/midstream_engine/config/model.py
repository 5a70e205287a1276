"""The model: ``model`` of the configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import draccus

from midstream_core.stored_activations import NAMES, stored_names
from midstream_engine.config.errors import ConfigError
from midstream_engine.config.rope import DefaultRopeConfig, RopeConfig

# ``nvte`` and ``jax_flash`` are Levanter's names of ``cudnn`` and ``xla``.
ATTENTION_BACKENDS = ("default", "vanilla", "xla", "cudnn", "splash", "triton", "nvte", "jax_flash")
ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu")
REMAT_POLICIES = (
    "full", "recompute", "nested", "offload", "save_all", "dots_saveable", "dots_with_no_batch_dims_saveable",
)  # fmt: skip
REMAT_BY_MEMORY = "auto"


@dataclass(frozen=True)
class LmConfig(draccus.ChoiceRegistry):
    """Fields of every autoregressive language model; ``type`` names the kind."""

    seq_len: int = 1024
    hidden_dim: int = 768
    num_layers: int = 12
    num_heads: int = 12
    initializer_range: float = 0.02  # standard deviation of new weights
    layer_norm_epsilon: float = 1e-5
    # What the backward pass computes again instead of storing it. true: all within a layer; false: nothing; names of
    # what a layer stores (qkv, attention, mlp, as qkv+attention), all else is computed again; auto: as many of these
    # names as the devices' memory has room for; or full, recompute, nested, offload, save_all, dots_saveable,
    # dots_with_no_batch_dims_saveable.
    gradient_checkpointing: bool | str = True
    # vanilla, xla, cudnn, splash or triton. None: on GPU cudnn, or triton where attention stops at documents' ends; on
    # TPU splash; xla where these do not fit; on CPU vanilla.
    attn_backend: str | None = None
    use_flash_attention: bool | None = None  # false: vanilla, unless attn_backend is given
    flash_attention_block_size: int | None = None  # of splash, in positions; None: up to 1024
    # Of splash: one kernel for all derivatives. It computes the scores once, not twice, but stores the gradient of the
    # queries once for each block of keys, in the computation's dtype.
    flash_attention_fused_backward: bool = False
    upcast_attn: bool = False  # scores from float32 queries and keys
    # Positions whose logits exist at a time. None: as many as need at most 256 MiB on each device, on a TPU or GPU a
    # sixteenth of its memory, at most 1 GiB.
    cross_entropy_block_size: int | None = None
    # The rows of the embedding are rounded up to a multiple of this, whatever the mesh; no loss sees the added rows.
    pad_vocab_to_multiple: int = 128

    def __post_init__(self) -> None:
        for name in ("seq_len", "hidden_dim", "num_layers", "num_heads", "pad_vocab_to_multiple"):
            if getattr(self, name) < 1:
                raise ConfigError(f"model.{name}: {getattr(self, name)} is not positive")
        for name in ("initializer_range", "layer_norm_epsilon"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"model.{name}: {getattr(self, name)} is negative or no number")
        for name in ("flash_attention_block_size", "cross_entropy_block_size", "head_dim", "intermediate_dim"):
            value = getattr(self, name, None)
            if value is not None and value < 1:
                raise ConfigError(f"model.{name}: {value} is not positive")
        block = self.cross_entropy_block_size
        if block is not None and self.seq_len % min(block, self.seq_len):
            raise ConfigError(f"model.cross_entropy_block_size: {block} does not divide model.seq_len ({self.seq_len})")
        if getattr(self, "head_dim", None) is None and self.hidden_dim % self.num_heads:
            raise ConfigError(
                f"model.hidden_dim: {self.hidden_dim} is not a multiple of model.num_heads ({self.num_heads})"
            )
        if self.attn_backend is not None:  # Levanter's dumps have it in capitals
            object.__setattr__(self, "attn_backend", self.attn_backend.lower())
        self._check_choice("attn_backend", self.attn_backend or "default", ATTENTION_BACKENDS)
        remat = self.gradient_checkpointing
        if isinstance(remat, str) and not stored_names(remat):
            named = (REMAT_BY_MEMORY, *NAMES, "+".join(NAMES[:2]))
            self._check_choice("gradient_checkpointing", remat, (*REMAT_POLICIES, *named))

    def _check_choice(self, name: str, value: str, choices: tuple[str, ...]) -> None:
        if value not in choices:
            raise ConfigError(f"model.{name}: {value!r} is not known; use one of {', '.join(choices)}")

    @classmethod
    def default_choice_name(cls) -> str:
        return "gpt2"

    @property
    def head_size(self) -> int:
        """Numbers per head."""
        return getattr(self, "head_dim", None) or self.hidden_dim // self.num_heads

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return getattr(self, "num_kv_heads", self.num_heads)

    @property
    def mlp_dim(self) -> int:
        """Width of the MLP."""
        raise NotImplementedError

    @property
    def gated_mlp(self) -> bool:
        """Whether the MLP has a third matrix, the gate."""
        return False

    def padded_vocab(self, vocab_size: int) -> int:
        """Return ``vocab_size`` rounded up to ``pad_vocab_to_multiple``."""
        return -(-vocab_size // self.pad_vocab_to_multiple) * self.pad_vocab_to_multiple


@LmConfig.register_subclass("gpt2")
@dataclass(frozen=True)
class Gpt2Config(LmConfig):
    """GPT-2 (Radford et al. 2019): learned positions, pre-LayerNorm, tied embeddings."""

    mlp_scale: int = 4
    activation_function: str = "gelu_new"  # gelu_new is the tanh form, gelu the exact one
    embed_pdrop: float = 0.0
    resid_pdrop: float = 0.0
    attn_pdrop: float = 0.0
    # Layer i's attention scores are also divided by i + 1 (Mistral's GPT-2; steadier in low precision).
    scale_attn_by_inverse_layer_idx: bool = False
    use_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_choice("activation_function", self.activation_function, ACTIVATIONS)
        if self.mlp_scale < 1:
            raise ConfigError(f"model.mlp_scale: {self.mlp_scale} is not positive")
        for name in ("embed_pdrop", "resid_pdrop", "attn_pdrop"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"model.{name}: {getattr(self, name)} is not in [0, 1)")
        if self.attn_pdrop > 0 and self.attn_backend not in (None, "default", "vanilla"):
            raise ConfigError(
                f"model.attn_pdrop: {self.attn_backend} attention has no dropout; set it to 0, "
                "or model.attn_backend to vanilla"
            )

    @property
    def mlp_dim(self) -> int:
        return self.hidden_dim * self.mlp_scale


@LmConfig.register_subclass("llama")
@dataclass(frozen=True)
class LlamaConfig(LmConfig):
    """Llama 2 and 3 (Touvron et al. 2023; Llama team 2024).

    RMSNorm, rotary positions, grouped queries, gated MLP.
    """

    seq_len: int = 2048
    hidden_dim: int = 4096
    num_layers: int = 32
    num_heads: int = 32
    num_kv_heads: int = 32  # 1: all query heads share keys and values; num_heads: none do
    head_dim: int | None = None  # None: hidden_dim / num_heads
    intermediate_dim: int = 11008
    activation_function: str = "silu"
    rope: RopeConfig = field(default_factory=DefaultRopeConfig)
    tie_word_embeddings: bool = False
    use_bias: bool = False
    attention_bias: bool | None = None  # None: use_bias
    mlp_bias: bool | None = None  # None: use_bias
    use_layer_norm_weight: bool = True
    epsilon_outside_root: bool = False  # norms divide by rms + epsilon, as GPT-NeoX did until May 2025
    # Scores are divided by the root of head_size; false: MaxText's llama2, whose weights of queries have that factor.
    scale_attention: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_choice("activation_function", self.activation_function, ACTIVATIONS)
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise ConfigError(f"model.num_kv_heads: {self.num_kv_heads} does not divide num_heads ({self.num_heads})")
        _check_rotary(self.head_size, "model.head_dim")

    @property
    def has_attention_bias(self) -> bool:
        return self.use_bias if self.attention_bias is None else self.attention_bias

    @property
    def has_mlp_bias(self) -> bool:
        return self.use_bias if self.mlp_bias is None else self.mlp_bias

    @property
    def mlp_dim(self) -> int:
        return self.intermediate_dim

    @property
    def gated_mlp(self) -> bool:
        return True


@LmConfig.register_subclass("neox")
@dataclass(frozen=True)
class NeoxConfig(LmConfig):
    """GPT-NeoX and Pythia (Black et al. 2022; Biderman et al. 2023).

    LayerNorm, rotary positions on a part of each head, attention and MLP in parallel or one after the other.
    """

    seq_len: int = 2048
    intermediate_dim: int | None = None  # None: 4 * hidden_dim
    activation_function: str = "gelu"  # gelu is the exact form, gelu_new the tanh one
    rope: RopeConfig = field(default_factory=DefaultRopeConfig)
    rotary_pct: float = 0.25  # the part of each head that is rotated
    use_parallel_residual: bool = True
    attention_bias: bool = True
    tie_word_embeddings: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_choice("activation_function", self.activation_function, ACTIVATIONS)
        if not 0.0 < self.rotary_pct <= 1.0:
            raise ConfigError(f"model.rotary_pct: {self.rotary_pct} is not in (0, 1]")
        _check_rotary(self.rotary_size, "model.rotary_pct")

    @property
    def rotary_size(self) -> int:
        """Rotated numbers per head."""
        return int(self.head_size * self.rotary_pct)

    @property
    def mlp_dim(self) -> int:
        return self.intermediate_dim or 4 * self.hidden_dim


def _check_rotary(size: int, name: str) -> None:
    if size < 2 or size % 2:
        raise ConfigError(f"{name}: {size} rotated numbers per head; rotary positions rotate pairs")
