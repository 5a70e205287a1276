"""Models with named axes and stacked layers."""

from midstream_engine.models.initialization import init_model
from midstream_engine.models.lm import LmModel, summed_loss, token_losses

__all__ = ["LmModel", "init_model", "summed_loss", "token_losses"]
