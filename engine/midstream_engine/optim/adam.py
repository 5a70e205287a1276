"""Adam: the moments of the gradients (Kingma & Ba 2015)."""

from __future__ import annotations

import optax

from midstream_engine.config.optimizer import AdamConfig
from midstream_engine.optim.stored_dtypes import stored_as

ADAM = "adam"  # the name of the part that holds the moments


def adam(config: AdamConfig) -> optax.GradientTransformation:
    """Return Adam without clipping, decay and learning rate."""
    scale = optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.epsilon, nesterov=config.nesterov)
    return stored_as(scale, mu=config.mu_dtype, nu=config.nu_dtype)
