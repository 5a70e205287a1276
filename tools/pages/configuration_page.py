"""Generator of the configuration reference.

The meaning of a field is the comment on its line, or the comment lines above it; ``MEANINGS`` has the others.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import textwrap
import tokenize
import typing
from typing import Any

import draccus

from midstream_engine.config import keys
from midstream_engine.config.averaging import ModelAveragingConfig
from midstream_engine.config.data import DataConfig, SourceConfig
from midstream_engine.config.distributed import DistributedConfig
from midstream_engine.config.keep_policy import KeepEvery
from midstream_engine.config.model import LmConfig
from midstream_engine.config.optimizer import ClipUpdateNormConfig, OptimizerConfig, SkipStepConfig
from midstream_engine.config.tracker import TrackerConfig
from midstream_engine.config.train import TrainLmConfig
from midstream_engine.config.trainer import CheckpointerConfig, TrainerConfig
from pages.markdown import cell

INTRODUCTION = """\
# Configuration

<!-- Written by `make pages`; a test compares. -->

A run is described by one YAML file with the sections `data`, `model`, `trainer` and `optimizer`; Levanter's names and
files are understood. Any value can be given on the command line as `--section.key VALUE`, and
`key: !include other.yaml` takes a value from another file, relative to the one that includes it. An unknown key is
rejected with the nearest known one. The configuration with all defaults is printed and stored as `run.yaml` in the run
directory.

Complete examples are in `configs/examples/`. [Levanter's fields](levanter.md) lists each field of Levanter's
configuration, and what it means here.

Differences from Levanter: without `trainer.tracker`, metrics go to `metrics.jsonl` alone (which is always written); all
files of a run are in its run directory under `trainer.root`; the last entry of `checkpointer.keep` may omit `until`; a
changed `train_batch_size` takes effect where the run resumes and neither rewinds nor skips data; SkipStep skips every
update whose loss or gradient norm is not finite, and keeps these out of its window (Levanter's takes them in and then
skips all updates until they leave it); `trainer.mp: half` is float16 on every device; parameters stay in the type that
`trainer.mp` gives them (Levanter's become float32 with the first update).

Precision: where `trainer.mp` computes in float32, products are computed in float32 on every device
(`trainer.matmul_precision: highest`). jax's default is TF32 on NVIDIA GPUs and bfloat16 on TPUs: several times faster,
but a migration between them would change the arithmetic. `trainer.matmul_precision: default` chooses it;
`trainer.mp: p=f32,c=bfloat16` is faster still and the same on both. On CPUs the key changes nothing. The variable
JAX_DEFAULT_MATMUL_PRECISION has no effect. In `trainer.jax_config`, `jax_default_matmul_precision` is read where it has
an exact counterpart: `highest` and `float32` are `highest`, `default` and `bfloat16` are `default`; other values are
refused. Levanter's default is jax's: an import of its checkpoint in float32 has `default`, unless the YAML has the
option. With `trainer.mp: bfloat16` or `half`, parameters and activations have 2 bytes a number; the update is
computed in float32, and Adam's moments and model averages are stored in float32. With `optimizer.mu_dtype` and
`optimizer.nu_dtype` `bfloat16` the state has 6 bytes a parameter instead of 10. float16 has no loss scale.

Random numbers are those of jax's generator `threefry2x32`, with partitions: no division of a batch and no mesh has an
effect on them. JAX_DEFAULT_PRNG_IMPL and JAX_THREEFRY_PARTITIONABLE have none either, and other values in
`trainer.jax_config` are refused.

Learning rates equal those of marin-levanter 0.2 at every update, or with `optimizer.schedule_rules: levanter-1.2` those
of Levanter 1.2, which does not limit a warmup and a decay to their cycle. An import takes the rules of the release that
wrote the checkpoint (1.2 for zarr 2, 0.2 for OCDBT), unless the YAML has `schedule_rules`. What remains different:

- `learning_rate` and `weight_decay` have the defaults of Levanter's guide, 1e-4 and 0; its code has 6e-4 and 0.1,
  which an import writes.
- `lr_schedule: {type: power}` is refused.
- `inv` with `min_lr_ratio: 0` is refused also where nothing decays.
- `cycles` that decrease, 0 cycles and a fractional number of cycles are refused; so are `haps` and `cycles` together,
  of which Levanter ignores one.
- Settings with which Levanter 1.2 raises an error or computes NaN are refused. It has no `polynomial` and no
  `inv_sqrt_decay`.
- `warmup: 1` means 100 % in all of them; a warning says so.

Optimizers: `adam`, `lion`, `muon`, `adopt` and `cautious` compute what they compute in marin-levanter 0.2, and SkipStep
works with each. Muon needs no `use_kimi_scaling` with GPT-2 here. Levanter 1.2 has its coefficients `simple` alone,
which an import writes. `lr` of Levanter's Muon, which it never reads, is refused; an import leaves it out. Not
supported are `mini`, `soap`, `kron`, `namo`, `namoD`, `adamH`, `muonH`, `grug_muon` and `sophia`, nor `scion`,
`rmsprop` and `mars`, which fail in Levanter itself with JAX 0.7.2 and newer (`mars` with clipping).
"""

MEANINGS = {
    "activation_function": "of the MLP",
    "attention_bias": "biases in attention",
    "attn_pdrop": "dropout of attention weights",
    "configs": "the datasets of a mixture, by name",
    "embed_pdrop": "dropout of embeddings",
    "gradient_checkpointing": "compute activations again in the backward pass instead of storing them",
    "hidden_dim": "width of the residual stream",
    "initializer_range": "standard deviation of new weights",
    "intermediate_dim": "width of the MLP",
    "layer_norm_epsilon": "added to the variance",
    "mlp_scale": "width of the MLP as a multiple of hidden_dim",
    "num_heads": "heads of attention",
    "num_layers": "blocks",
    "resid_pdrop": "dropout of each part's addition to the residual stream",
    "rope": "rotary positions",
    "seq_len": "tokens in a sequence",
    "shuffle": "a new order in every epoch; false: stored order",
    "text_key": "the field of a JSON line with the text",
    "tie_word_embeddings": "the output layer is the embedding",
    "tokenizer": "bytes, or the path of a Hugging Face tokenizer.json",
    "train_urls": "training text",
    "use_bias": "biases in linear layers and norms",
    "use_layer_norm_weight": "norms have a weight",
    "use_parallel_residual": "attention and MLP side by side instead of one after the other",
    "validation_urls": "evaluation text",
    "theta": "base of the rotary wavelengths",
    "factor": "factor by which positions are stretched",
    "low_freq_factor": "wavelengths longer than the original context by this part are fully stretched",
    "high_freq_factor": "wavelengths shorter than the original context by this part are not stretched",
    "original_max_position_embeddings": "the context that the model was first trained with, in tokens",
    "every": "steps between permanent checkpoints",
    "until": "the last step of this rule; None: without end",
}
TYPES = {
    "train_batch_size": "int or list of {start, value}",
    "cycles": "int or list[int]",
    "cycle_length": "int, float or list[int]",
    "weight_decay_modules": "str or list[str]",
    "skip_bad_steps": "bool, int or mapping",
    "resume": "str or bool",
    "save_code": "bool or str",
}


def document() -> str:
    """Return the page as Markdown."""
    parts = [INTRODUCTION]
    parts += _section("data", DataConfig)
    parts += _section("data.configs.NAME", SourceConfig)
    parts += _choices("model", LmConfig)
    for name, registry in _nested(LmConfig).items():
        parts += _choices(f"model.{name}", registry)
    parts += _section("trainer", TrainerConfig)
    parts += _section("trainer.checkpointer", CheckpointerConfig)
    parts += _section("trainer.checkpointer.keep", KeepEvery)
    parts += _choices("trainer.model_averaging", ModelAveragingConfig)
    parts += _choices("trainer.tracker", TrackerConfig)
    parts += _section("trainer.distributed", DistributedConfig)
    parts += _choices("optimizer", OptimizerConfig)
    parts += _section("optimizer.skip_bad_steps", SkipStepConfig)
    parts += _section("optimizer.clip_update_norm", ClipUpdateNormConfig)
    parts += _section("z_loss_weight", TrainLmConfig, of_its_own=True)
    parts.append("## Other names\n\n| Also understood | Is |\n| --- | --- |")
    parts.append("\n".join(f"| `{name}` | `{real}` |" for name, real in sorted(keys.ALIASES.items())) + "\n")
    return "\n".join(parts) + "\n"


def _choices(name: str, cls: type[draccus.ChoiceRegistry]) -> list[str]:
    """Return a section for each ``type``."""
    parts: list[str] = []
    for kind, choice in cls.get_known_choices().items():
        default = " (the default)" if kind == cls.default_choice_name() else ""
        parts += _section(f"{name}", choice, f", `type: {kind}`{default}")
    return parts


def _nested(cls: type[draccus.ChoiceRegistry]) -> dict[str, type[draccus.ChoiceRegistry]]:
    """Return the choices within the choices of ``cls``, by field."""
    found: dict[str, type[draccus.ChoiceRegistry]] = {}
    for choice in cls.get_known_choices().values():
        for name, hint in typing.get_type_hints(choice).items():
            if isinstance(hint, type) and issubclass(hint, draccus.ChoiceRegistry):
                found[name] = hint
    return found


def _section(name: str, cls: type, more: str = "", *, of_its_own: bool = False) -> list[str]:
    """Return the section of ``cls``.

    ``of_its_own``: of those of its fields that are no sections, without its text.
    """
    lines = [f"## `{name}`{more}\n"]
    text = " ".join((inspect.getdoc(cls) or "").replace("``", "`").split())
    if text and not text.startswith(f"{cls.__name__}(") and not of_its_own:
        lines.append(f"{text}\n")
    fields = [one for one in dataclasses.fields(cls) if not of_its_own or one.default is not dataclasses.MISSING]
    rows = [_row(cls, field) for field in fields]
    if rows:
        lines += ["| Parameter | Type | Default | Meaning |", "| --- | --- | --- | --- |", *rows, ""]
    return lines


def _row(cls: type, field: dataclasses.Field[Any]) -> str:
    kind = TYPES.get(field.name) or str(field.type)
    meaning = _comment(cls, field.name) or MEANINGS.get(field.name, "")
    default = cell(f"`{_default(field)}`")
    return f"| `{field.name}` | {_cell(kind)} | {default} | {_cell(meaning)} |"


def _cell(text: str) -> str:
    return text.replace("|", "or").replace("<", "&lt;")


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return _value(field.default)
    if field.default_factory is dataclasses.MISSING:
        return "required"
    return _value(field.default_factory())


def _value(value: Any) -> str:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return "see below" if not isinstance(value, KeepEvery) else f"{{every: {value.every}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _comment(cls: type, name: str) -> str:
    """Return the comment of a field in the class that defines it."""
    for owner in cls.__mro__:
        if name in inspect.get_annotations(owner):
            return _comments(owner).get(name, "")
    return ""


def _comments(cls: type) -> dict[str, str]:
    """Return the comment on each field's line, else the lines directly above it.

    The comments are by field; the lines above it are comment lines.
    """
    source = textwrap.dedent(inspect.getsource(cls))
    notes: dict[int, tuple[str, bool]] = {}  # line -> text, whether the line is only a comment
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            notes[token.start[0]] = token.string.lstrip("# "), not token.line[: token.start[1]].strip()
    (body,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    found: dict[str, str] = {}
    for node in body.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        beside = notes.get(node.end_lineno or node.lineno)
        above: list[str] = []
        line = node.lineno - 1
        while line in notes and notes[line][1]:
            above.insert(0, notes[line][0])
            line -= 1
        found[node.target.id] = beside[0] if beside else " ".join(above)
    return found
