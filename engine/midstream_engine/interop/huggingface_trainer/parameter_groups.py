"""Order of the parameters in the Trainer's optimizer, and which of them decay."""

from __future__ import annotations

import re
from typing import NamedTuple

from midstream_engine.config.model import LmConfig
from midstream_engine.interop.huggingface.names import TensorRule, rules_of

_EMBEDDING = re.compile(r"\.(wte|wpe|embed_tokens|embed_in)\.")
_PLAIN = re.compile(r"bias$|norm|\.ln_")  # biases and norms of the models that are exported


class NamedParameter(NamedTuple):
    """A parameter of the model of transformers.

    It is a layer of an array of ours, or all of one.
    """

    name: str
    rule: TensorRule
    layer: int

    @property
    def decays(self) -> bool:
        """Whether Trainer's rule applies weight decay: to all but norms and biases."""
        return not _PLAIN.search(self.name)

    @property
    def embedding(self) -> bool:
        """Whether it is an embedding, which does not decay here by default."""
        return _EMBEDDING.search(self.name) is not None


def named_parameters(model: LmConfig) -> list[NamedParameter]:
    """Return the model's parameters in the order of its modules."""
    rules = rules_of(model)
    stacked = [rule for rule in rules if rule.stacked]
    first = rules.index(stacked[0])
    last = first + len(stacked)
    layers = [
        NamedParameter(rule.theirs.format(layer), rule, layer) for layer in range(model.num_layers) for rule in stacked
    ]
    before, after = ([NamedParameter(rule.theirs, rule, 0) for rule in some] for some in (rules[:first], rules[last:]))
    return [*before, *layers, *after]
