"""Cases of ``test_library_behaviour.py``: ``python library_cases.py CASE [ARGUMENT ...]`` prints a line of JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

RANK = int(os.environ.get("RANK", "0"))
SAMPLES = 24
batches: list[list[int]] = []


class Sized(Dataset):
    """Data with a length."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.tensor([float(index)])}


class Stream(IterableDataset):
    """The same data without a length."""

    def __iter__(self):
        return (Sized()[index] for index in range(SAMPLES))


class Model(torch.nn.Module):
    """A model that records the batches that it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss of a batch."""
        batches.append(x.flatten().int().tolist())
        return {"loss": (self.layer(x) * 1e-3).pow(2).mean()}


def huggingface(kind: str, out: str, resume: str = "") -> Any:
    """Train 16 steps; ``kind``: stream, sized or dispatched."""
    from transformers import Trainer, TrainingArguments

    more: dict[str, Any] = {"accelerator_config": {"dispatch_batches": True}} if kind == "dispatched" else {}
    arguments = TrainingArguments(
        out, max_steps=16, save_steps=2, per_device_train_batch_size=2, report_to=[], use_cpu=True, disable_tqdm=True,
        logging_steps=100, **more,
    )  # fmt: skip
    trainer = Trainer(model=Model(), args=arguments, train_dataset=Stream() if kind == "stream" else Sized())
    trainer.train(resume_from_checkpoint=resume or None)
    return batches


def schedule() -> Any:
    """Rates of a scheduler that Accelerate has prepared, and of one that it has not."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    rates: dict[str, list[float]] = {}
    for name in ("prepared", "plain"):
        optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), 1.0)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 100)
        optimizer = accelerator.prepare(optimizer)
        scheduler = accelerator.prepare(scheduler) if name == "prepared" else scheduler
        rates[name] = []
        for _ in range(3):
            optimizer.step()
            scheduler.step()
            rates[name].append(round(scheduler.get_last_lr()[0], 6))
    return rates


def names(out: str, continued: str) -> Any:
    """Save by automatic names after ``load_state`` until one is there already; return the number of saves."""
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration

    def fresh() -> Any:
        accelerator = Accelerator(cpu=True, project_config=ProjectConfiguration(out, automatic_checkpoint_naming=True))
        accelerator.prepare(torch.nn.Linear(1, 1))
        return accelerator

    first = fresh()
    for _ in range(3):
        first.save_state()
    for number in (0, 1):  # a target has the newest alone
        for root, _, files in os.walk(f"{out}/checkpoints/checkpoint_{number}"):
            for file in files:
                os.unlink(os.path.join(root, file))
            os.rmdir(root)
    resumed = fresh()
    resumed.load_state(f"{out}/checkpoints/checkpoint_2")
    if continued == "yes":
        resumed.project_configuration.iteration = 3
    for saved in range(5):
        try:
            resumed.save_state()
        except ValueError as error:
            return [saved, "already exists" in str(error)]
    return [5, False]


def lightning(processes: str) -> Any:
    """Batches of a training loader without shuffle."""
    import lightning

    seen: list[list[int]] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            seen.append(batch["x"].flatten().int().tolist())
            return self.layer(batch["x"]).mean() * 1e-6

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-9)

    trainer = lightning.Trainer(
        max_steps=4, accelerator="cpu", devices=int(processes), strategy="ddp" if processes != "1" else "auto",
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(Sized(), batch_size=2, shuffle=False))
    return seen


def stream(before: str, after: str) -> Any:
    """Examples of a stream of datasets that ``before`` processes have begun and ``after`` go on with."""
    from datasets import Dataset as Table
    from datasets.distributed import split_dataset_by_node

    def parts(count: int) -> list[Any]:
        table = Table.from_dict({"x": list(range(SAMPLES))}).to_iterable_dataset(num_shards=4)
        return [split_dataset_by_node(table, rank, count) for rank in range(count)]

    first, read, state = parts(int(before)), [], None
    for part in first:
        examples = iter(part)
        read += [next(examples)["x"] for _ in range(SAMPLES // 2 // int(before))]
        state = state or part.state_dict()  # process 0 saves
    rest = []
    for part in parts(int(after)):
        part.load_state_dict(state)
        rest += [example["x"] for example in part]
    return [read, rest]


def buffer() -> Any:
    """Examples before and after a resume of a stream with a shuffle buffer."""
    from datasets import Dataset as Table

    def fresh() -> Any:
        table = Table.from_dict({"x": list(range(1000))}).to_iterable_dataset(num_shards=4)
        return table.shuffle(seed=1, buffer_size=100)

    begun = fresh()
    examples = iter(begun)
    read = [next(examples)["x"] for _ in range(400)]
    state = begun.state_dict()
    resumed = fresh()
    resumed.load_state_dict(state)
    return [read, [example["x"] for example in resumed]]


found = globals()[sys.argv[1]](*sys.argv[2:])
sys.stdout.write(f"FOUND {RANK} {json.dumps(found)}\n")
