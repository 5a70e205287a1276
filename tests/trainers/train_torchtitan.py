"""Train a tiny Llama with torchtitan's own parts: ``torchrun train_torchtitan.py REQUEST.json``.

Its model, optimizer, schedule, clipping and names of the state; FSDP2 on gloo. Attention is torch's, as torchtitan's
needs a compiler. Prints ``step=N loss=HEX lr=HEX`` for each update.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torchtitan.components.checkpointer.base import ModelWrapper
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.config import TrainingConfig
from torchtitan.distributed.utils import clip_grad_norm_
from torchtitan.models.common import (
    ComplexRoPE,
    Embedding,
    Linear,
    RMSNorm,
)
from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config
from torchtitan.models.llama3 import Llama3Model
from torchtitan.models.llama3.model import Llama3TransformerBlock
from torchtitan.protocols.module import Module

DIM, HEADS, KV_HEADS, LAYERS, HIDDEN, VOCABULARY, LENGTH, BATCH = 32, 4, 2, 2, 40, 37, 16, 12


class Attention(Module):
    """Causal attention of torch's."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """No settings."""

    def __init__(self, config: Config) -> None:
        super().__init__()

    def forward(self, q: Any, k: Any, v: Any, *, attention_masks: Any, scale: Any, enable_gqa: bool) -> Any:
        """Return [batch, position, head, number]."""
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=enable_gqa).transpose(1, 2)


def model_config(request: dict[str, Any]) -> Any:
    """Return torchtitan's configuration of the model."""
    init = {"weight": lambda weight: torch.nn.init.normal_(weight, std=0.2), "bias": torch.nn.init.zeros_}
    about_one = {"weight": lambda weight: torch.nn.init.normal_(weight, 1, 0.1)}
    norm = RMSNorm.Config(normalized_shape=DIM, param_init=about_one)
    scaling = "llama" if request.get("llama_rope") else "none"

    def layer() -> Any:
        rope = ComplexRoPE.Config(dim=DIM // HEADS, max_seq_len=64, theta=500.0, scaling=scaling, scaling_factor=4.0,
                                  original_max_position_embeddings=8)  # fmt: skip
        attention = make_gqa_config(
            dim=DIM, n_heads=HEADS, n_kv_heads=KV_HEADS, wqkv_param_init=init, wo_param_init=init, rope=rope,
            inner_attention=Attention.Config(), fuse_qkv=request.get("fused_qkv", True),
        )  # fmt: skip
        return Llama3TransformerBlock.Config(
            attention_norm=norm, ffn_norm=norm, attention=attention,
            feed_forward=make_ffn_config(dim=DIM, hidden_dim=HIDDEN, w1_param_init=init, w2w3_param_init=init),
        )  # fmt: skip

    return Llama3Model.Config(
        dim=DIM, vocab_size=VOCABULARY, norm=norm, layers=[layer() for _ in range(LAYERS)],
        enable_weight_tying=request.get("tied", False),
        tok_embeddings=Embedding.Config(num_embeddings=VOCABULARY, embedding_dim=DIM, param_init=init),
        lm_head=Linear.Config(in_features=DIM, out_features=VOCABULARY, param_init=init),
    )  # fmt: skip


class TrainState:
    """The trainer's own counts, by torchtitan's names."""

    def __init__(self) -> None:
        self.step = self.ntokens_seen = 0

    def state_dict(self) -> dict[str, int]:
        """Return what a checkpoint has."""
        return {"step": self.step, "ntokens_seen": self.ntokens_seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take what a checkpoint has."""
        self.step, self.ntokens_seen = state["step"], state["ntokens_seen"]


class Loader:
    """A position of a data loader."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks

    def state_dict(self) -> dict[str, Any]:
        """Return what torchtitan's loader has."""
        return {f"dp_rank_{self.rank}": b"position", "world_size": self.ranks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Ignore the position: batches are those of the request."""


def main() -> None:
    """Train as the request says."""
    request = json.loads(Path(sys.argv[1]).read_text())
    torch.manual_seed(request.get("seed", 0))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    config = model_config(request)
    model = config.build()
    model.init_states()
    mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp_shard",))
    if request.get("fsdp", True):
        for layer in model.layers.values():
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    adamw = default_adamw(**request["optimizer"])
    optimizers = adamw.build(model_parts=[model])
    rates = LRSchedulersContainer.Config(**request["lr_scheduler"])
    schedulers = rates.build(optimizers=optimizers, training_steps=request["steps"])
    trained, wrapped = TrainState(), ModelWrapper(model)
    loader = {} if request.get("load") else {"dataloader": Loader(rank, ranks)}
    parts = {"optimizer": optimizers, "lr_scheduler": schedulers, "train_state": trained, **loader}
    if request.get("load"):
        # As its checkpoint manager loads: the names of the model are beside those of the parts.
        parts["model"] = wrapped
        state = {name: part for name, part in parts.items() if name != "model"} | wrapped.state_dict()
        dcp.load(state, checkpoint_id=request["load"])
        wrapped.load_state_dict(state)
    for tokens in request["batches"]:
        batch = torch.tensor(tokens)[rank * BATCH // ranks : (rank + 1) * BATCH // ranks]
        logits = model(batch[:, :-1])
        total = cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten(), reduction="sum")
        loss = total / (BATCH * LENGTH)
        optimizers.zero_grad()
        # FSDP2 averages gradients over the processes; torchtitan turns that off in the same way.
        (loss * (ranks if request.get("fsdp", True) else 1)).backward()
        clip_grad_norm_(list(model.parameters()), request.get("max_norm", 1.0), foreach=False)
        rate = optimizers.optimizers[0].param_groups[0]["lr"]
        optimizers.step()
        schedulers.step()
        reported = loss.detach().clone()
        dist.all_reduce(reported)
        trained.step += 1
        trained.ntokens_seen += BATCH * LENGTH
        if rank == 0:
            sys.stdout.write(f"step={trained.step} loss={float(reported).hex()} lr={float(rate).hex()}\n")
        if request.get("save") and trained.step == request["save_at"]:
            state = {name: part for name, part in parts.items() if name != "model"} | wrapped.state_dict()
            dcp.save(state, checkpoint_id=request["save"])
    if rank == 0 and request.get("config"):
        described = {
            "model_spec": {"name": "llama3", "model": config.to_dict()},
            "optimizer": adamw.to_dict(), "lr_scheduler": rates.to_dict(),
            "training": asdict(TrainingConfig(
                local_batch_size=BATCH, global_batch_size=BATCH, seq_len=LENGTH, steps=request["steps"],
                max_norm=request.get("max_norm", 1.0), mixed_precision_param="float32",
            )),
        }  # fmt: skip
        Path(request["config"]).write_text(json.dumps(described))
    dist.destroy_process_group()


main()
