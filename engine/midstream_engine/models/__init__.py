"""Models with named axes and stacked layers."""

from midstream_engine.models.lm import LmModel, init_model, summed_loss, token_losses

__all__ = ["LmModel", "init_model", "summed_loss", "token_losses"]
