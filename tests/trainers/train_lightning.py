"""Train with Lightning: ``python train_lightning.py OUT --steps N [options]``."""

from __future__ import annotations

import argparse

import lightning
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from small_task import Samples, network, progress
from torch import nn


class Classifier(lightning.LightningModule):
    """The network as a module of Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def training_step(self, batch, _) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.network(batch["x"]), batch["labels"])
        self.log("train_loss", loss)
        progress(self.global_step, loss.item(), batch["index"].tolist())
        return loss

    def validation_step(self, batch, _) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self.network(batch["x"]), batch["labels"]))

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.AdamW(self.parameters(), 1e-2)
        return {"optimizer": optimizer, "lr_scheduler": {
            "scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)), "interval": "step"
        }}  # fmt: skip


def main() -> None:
    """Train, from a checkpoint with ``--resume PATH``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--resume")
    parser.add_argument("--save", choices=["none", "default", "periodic", "exception"], default="periodic")
    parser.add_argument("--logger", choices=["csv", "tensorboard"], default="csv")
    parser.add_argument("--stateful", action="store_true")
    parser.add_argument("--validate-every", type=int, default=0)
    parser.add_argument("--devices", type=int, default=1)
    given = parser.parse_args()
    lightning.seed_everything(5)
    if given.stateful:
        from torchdata.stateful_dataloader import StatefulDataLoader as Loader
    else:
        from torch.utils.data import DataLoader as Loader
    loader = Loader(Samples(), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(2))
    callbacks: list = [LearningRateMonitor("step")]
    if given.save in ("periodic", "exception"):
        callbacks.append(ModelCheckpoint(
            every_n_train_steps=given.save_every, save_top_k=-1, save_last=True,
            save_on_exception=given.save == "exception",
        ))  # fmt: skip
    logger = CSVLogger(given.out, flush_logs_every_n_steps=1) if given.logger == "csv" else TensorBoardLogger(given.out)
    validation = (
        torch.utils.data.DataLoader(torch.utils.data.Subset(Samples(), range(16)), batch_size=8)
        if given.validate_every
        else None
    )
    trainer = lightning.Trainer(
        max_steps=given.steps, accelerator="cpu", devices=given.devices, logger=logger, callbacks=callbacks,
        log_every_n_steps=1, enable_progress_bar=False, enable_model_summary=False, default_root_dir=given.out,
        val_check_interval=given.validate_every or None, enable_checkpointing=given.save != "none",
        num_sanity_val_steps=0, strategy="ddp" if given.devices > 1 else "auto",
    )  # fmt: skip
    trainer.fit(Classifier(), loader, validation, ckpt_path=given.resume)


main()
