"""The same step in plain PyTorch: its own attention, its own AdamW, compiled on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import torch.nn.functional as F  # pyright: ignore[reportMissingImports]

from steps.shape import BETA1, BETA2, CLIP, EPSILON, LEARNING_RATE, PARAMETERS, WEIGHT_DECAY, Shape


def attention(q: Any, k: Any, v: Any) -> Any:
    """[batch, position, heads, head] of each; k and v may have fewer heads."""
    grouped = q.shape[2] != k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped).transpose(1, 2)


class Model(torch.nn.Module):
    """The parameters by midstream's names, one tensor a layer."""

    def __init__(self, shape: Shape, arrays: dict[str, np.ndarray]) -> None:
        super().__init__()
        self.shape = shape
        stacked = "blocks/stacked/"
        self.outer, self.layers = torch.nn.ParameterDict(), torch.nn.ModuleList()
        for _ in range(shape.layers):
            self.layers.append(torch.nn.ParameterDict())
        for name, array in arrays.items():
            if not name.startswith(stacked):
                self.outer[self.key(name)] = torch.nn.Parameter(torch.from_numpy(array.copy()))
                continue
            for layer, values in zip(self.layers, array, strict=True):
                layer[self.key(name.removeprefix(stacked))] = torch.nn.Parameter(torch.from_numpy(values.copy()))

    @staticmethod
    def key(name: str) -> str:
        return name.replace("/", "__")

    def norm(self, x: Any, w: Any, name: str) -> Any:
        weight = w[f"{name}__weight"]
        if self.shape.kind == "gpt2":
            return F.layer_norm(x, (self.shape.hidden,), weight, w[f"{name}__bias"], 1e-5)
        return F.rms_norm(x, (self.shape.hidden,), weight, 1e-5)

    def gpt2(self, x: Any, w: Any) -> Any:
        b, s, d = x.shape
        # One product for all heads, of the weight seen as [embed, 3 * heads * head].
        qkv = self.norm(x, w, "ln_1") @ w["attn__qkv__weight"].flatten(1) + w["attn__qkv__bias"].flatten()
        q, k, v = qkv.view(b, s, 3, self.shape.heads, self.shape.head).unbind(2)
        out = attention(q, k, v).reshape(b, s, d)
        x = x + out @ w["attn__proj__weight"].flatten(0, 1) + w["attn__proj__bias"]
        inner = self.norm(x, w, "ln_2") @ w["mlp__up__weight"] + w["mlp__up__bias"]
        return x + F.gelu(inner, approximate="tanh") @ w["mlp__down__weight"] + w["mlp__down__bias"]

    def llama(self, x: Any, w: Any, cos: Any, sin: Any) -> Any:
        def rotate(x: Any) -> Any:
            first, second = x.chunk(2, -1)
            return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)

        b, s, d = x.shape
        y = self.norm(x, w, "input_layernorm")
        q, k, v = (
            (y @ w[f"self_attn__{name}_proj__weight"].flatten(1)).view(b, s, -1, self.shape.head) for name in "qkv"
        )
        out = attention(rotate(q), rotate(k), v).reshape(b, s, d)
        x = x + out @ w["self_attn__o_proj__weight"].flatten(0, 1)
        y = self.norm(x, w, "post_attention_layernorm")
        return (
            x
            + (F.silu(y @ w["mlp__gate_proj__weight"]) * (y @ w["mlp__up_proj__weight"])) @ w["mlp__down_proj__weight"]
        )

    def forward(self, tokens: Any) -> Any:
        shape, w = self.shape, self.outer
        x = F.embedding(tokens, w["token_embeddings__weight"])
        if shape.kind == "gpt2":
            x = x + w["position_embeddings__weight"]
            extra: tuple[Any, ...] = ()
        else:
            turning = 10_000.0 ** (-torch.arange(0, shape.head, 2, device=x.device) / shape.head)
            angles = torch.arange(shape.seq_len, device=x.device)[:, None] * turning
            extra = (angles.cos()[:, None, :], angles.sin()[:, None, :])
        block = self.gpt2 if shape.kind == "gpt2" else self.llama
        for layer in self.layers:
            if shape.remat:
                x = torch.utils.checkpoint.checkpoint(block, x, layer, *extra, use_reentrant=False)
            else:
                x = block(x, layer, *extra)
        x = self.norm(x, w, "ln_f" if shape.kind == "gpt2" else "norm")
        logits = x[:, :-1] @ w["token_embeddings__weight"].T
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def start(shape: Shape, directory: Path) -> tuple[Callable[[np.ndarray], float], dict[str, Any]]:
    """(batch -> loss, facts)."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Model(shape, dict(np.load(directory / PARAMETERS))).to(device)
    decayed = [p for n, p in model.named_parameters() if n.endswith("weight") and p.ndim > 1 and "embed" not in n]
    chosen = {id(p) for p in decayed}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(BETA1, BETA2), eps=EPSILON, fused=True)
    measure = torch.compile(model) if device == "cuda" else model
    narrow = shape.compute == "bfloat16"

    def step(batch: np.ndarray) -> float:
        tokens = torch.from_numpy(batch).long().to(device, non_blocking=True)
        with torch.autocast(device, torch.bfloat16, enabled=narrow):
            loss = measure(tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step, {"versions": {"torch": torch.__version__}, "threads": torch.get_num_threads()}
