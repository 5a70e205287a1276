"""Initialize a language model of any architecture."""

from __future__ import annotations

from haliax import Axis
from jaxtyping import PRNGKeyArray

from midstream_engine.config.model import Gpt2Config, LlamaConfig, LmConfig, NeoxConfig
from midstream_engine.models.gpt2 import Gpt2Model
from midstream_engine.models.llama import LlamaModel
from midstream_engine.models.lm import LmModel
from midstream_engine.models.neox import NeoxModel


def init_model(config: LmConfig, vocab_size: int, key: PRNGKeyArray) -> LmModel:
    """Return a new float32 model, a function of the arguments alone."""
    Vocab = Axis("vocab", config.padded_vocab(vocab_size))
    if isinstance(config, Gpt2Config):
        return Gpt2Model.init(config, Vocab, vocab_size, key=key)
    if isinstance(config, LlamaConfig):
        return LlamaModel.init(config, Vocab, vocab_size, key=key)
    if isinstance(config, NeoxConfig):
        return NeoxModel.init(config, Vocab, vocab_size, key=key)
    raise TypeError(f"no model for {type(config).__name__}")
