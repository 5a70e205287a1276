"""Train a model with NeoX's names, or transformers' own, with DeepSpeed, from an export of `midstream`.

``torchrun ... export_deepspeed.py CASE OUT``: a case of the fixtures' generator, or ``transformers``; OUT gets the
checkpoint. Prints each step's loss exactly, with the learning rate before the batch.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "fixtures" / "neox"))
import generate as neox  # first: it sets the environment of deepspeed

import deepspeed  # isort: skip
import numpy as np
import torch
from small_task import progress

NAMES = {"mlp_names": ("linear1", "linear2")}
CASES = {
    "pythia-bf16": neox.Fixture(neox.PYTHIA | NAMES, "bfloat16", 1, "fp32", 2, 0),
    "llama-fp32-pipeline": neox.Fixture(neox.LLAMA, "fp32", 1, None, 2, 1),
    "tied-fp32-pipeline": neox.Fixture(neox.TIED, "fp32", 1, None, 1, 1),
    "pythia-fp32": neox.Fixture(neox.PYTHIA | NAMES, "fp32", 1, None, 2, 0),
    "plain-fp32": neox.Fixture(neox.SEQUENTIAL | NAMES, "fp32", 0, None, 2, 0),
    "any-ranks": neox.Fixture(neox.PYTHIA | NAMES, "fp32", 1, None, 8, 0),  # with a batch and steps of its own
}


class Annealing(neox.Annealing):
    """NeoX's scheduler, which takes up its state."""

    def load_state_dict(self, state: dict) -> None:
        """Go on at the state's update; everything else has to be as configured."""
        self.num_iters = state["num_iters"]
        assert state == self.state_dict(), state
        self._set()


def module_of(case: neox.Fixture) -> torch.nn.Module:
    """The model, with weights that a checkpoint replaces."""
    if not case.pipeline:
        module = neox.small.Wrapper(case.shape)
    else:
        # The layers of NeoX that are functions have no file.
        layers = [
            (lambda x: x) if isinstance(layer, neox.small.Identity) else layer
            for layer in neox.small.layers(case.shape)
        ]
        module = neox.PipelineModule(
            layers, loss_fn=neox.small.loss_of, partition_method="uniform",
            topology=neox.PipeModelDataParallelTopology(case.pipeline, 1, case.data), activation_checkpoint_interval=0,
        )  # fmt: skip
    neox.small.start(module, 7, case.shape if "no_weight_tying" in case.shape else None)
    return module


def transformers_of(folder: Path) -> tuple[torch.nn.Module, list[dict]]:
    """The exported model, and its parameters by weight decay."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    groups: list[dict] = [{"params": [], "weight_decay": neox.DECAY}, {"params": [], "weight_decay": 0.0}]
    for name, parameter in model.named_parameters():
        groups[name.endswith("bias") or "norm" in name]["params"].append(parameter)
    return model, groups


def main() -> None:
    """Train, from a checkpoint with ``--resume PATH``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=[*CASES, "transformers"])
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save-at", type=int, default=0)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--universal", action="store_true")
    parser.add_argument("--batches", help="file for the tokens of all steps")
    given = parser.parse_args()
    deepspeed.init_distributed("gloo")
    ranks = torch.distributed.get_world_size()
    if given.case == "transformers":
        case = CASES["pythia-fp32"]._replace(data=ranks)
        module, groups = transformers_of(given.resume)
        config = json.loads((given.resume / "ds_config.json").read_text())
        config |= {"train_micro_batch_size_per_gpu": neox.GLOBAL_BATCH // ranks, "steps_per_print": 10**9}
        config["checkpoint"] = {"load_universal": given.universal}
    else:
        case = CASES[given.case]
        if given.case == "any-ranks":
            neox.GLOBAL_BATCH, neox.ITERATIONS, neox.WARMUP = 32, 30, 3.0
            case = case._replace(data=ranks)
        if given.batches and torch.distributed.get_rank() == 0:
            np.save(given.batches, np.stack([neox.batch(step) for step in range(given.steps)]))
        module = module_of(case)
        groups, config = neox.small.groups(module, neox.DECAY), neox.settings(case)
    optimizer = torch.optim.AdamW(groups, lr=neox.LR, betas=(0.9, 0.95), eps=1e-8)
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, lr_scheduler=Annealing, config=config)
    if given.case == "transformers":
        forward, engine.lr_scheduler = engine.forward, None  # a script with a schedule of its own
        engine.forward = lambda tokens: forward(tokens).logits
    if given.resume:
        path, state = engine.load_checkpoint(str(given.resume))
        assert path is not None, f"nothing was loaded from {given.resume}"
        assert given.case == "transformers" or state["iteration"] == engine.global_steps
    while engine.global_steps < given.steps:
        step = engine.global_steps
        if given.case == "transformers":
            schedule = Annealing(engine.optimizer)
            schedule.num_iters = step
            schedule._set()
        rate = engine.optimizer.param_groups[0]["lr"]
        loss = neox.train(engine, step, case)
        if torch.distributed.get_rank() == 0:
            progress(step + 1, loss, [int(rate * 1e12)])
        if engine.global_steps == given.save_at:
            state = {"iteration": step + 1}
            engine.save_checkpoint(given.out, tag=f"global_step{step + 1}", client_state=state)
            if torch.distributed.get_rank() == 0:
                configs = Path(given.out, f"global_step{step + 1}", "configs")
                configs.mkdir()
                (configs / "run.yml").write_text(neox.yaml.safe_dump(neox.yaml_of(case)))
    torch.distributed.destroy_process_group()


main()
