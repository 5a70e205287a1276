"""``python -m midstream_engine.config.document > docs/configuration.md``: every field, its type, default and meaning.

The meaning of a field is the comment beside it, or the comment lines above it; ``MEANINGS`` has those whose names say
nearly enough.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import sys
import textwrap
import tokenize
import typing
from typing import Any

import draccus

from midstream_engine.checkpoint.saving.retention import KeepEvery
from midstream_engine.config import keys
from midstream_engine.config.averaging import ModelAveragingConfig
from midstream_engine.config.data import DataConfig, SourceConfig
from midstream_engine.config.distributed import DistributedConfig
from midstream_engine.config.errors import ConfigError
from midstream_engine.config.model import LmConfig
from midstream_engine.config.optimizer import OptimizerConfig, SkipStepConfig
from midstream_engine.config.tracker import TrackerConfig
from midstream_engine.config.trainer import CheckpointerConfig, TrainerConfig

INTRODUCTION = """\
# Configuration

<!-- Written by `python -m midstream_engine.config.document > docs/configuration.md`; a test holds it current. -->

A run is described by one YAML file with the sections `data`, `model`, `trainer` and `optimizer`; Levanter's names and
files are understood. Any value can be given on the command line as `--section.key VALUE`, and
`key: !include other.yaml` takes a value from another file, relative to the one that includes it. An unknown key is
refused with the nearest known one. The configuration with every default written out is printed and stored as `run.yaml`
in the run directory.

Examples that run as they stand are in `configs/examples/`.

Where this differs from Levanter: without `trainer.tracker`, metrics go to `metrics.jsonl` alone (which is always
written); everything of a run lies in its run directory under `trainer.root`; the last entry of `checkpointer.keep` may
leave out `until`; a changed `train_batch_size` takes effect where the run goes on and neither rewinds nor skips data;
an update that SkipStep leaves out still counts in the learning-rate schedule.
"""

MEANINGS = {
    "activation_function": "of the MLP",
    "attention_bias": "biases in attention",
    "attn_pdrop": "dropout of attention weights",
    "configs": "the bodies of text of a mixture, by name",
    "embed_pdrop": "dropout of embeddings",
    "gradient_checkpointing": "compute activations again in the backward pass instead of keeping them",
    "hidden_dim": "width of the residual stream",
    "initializer_range": "standard deviation of fresh weights",
    "intermediate_dim": "width of the MLP",
    "layer_norm_epsilon": "added to the variance",
    "mlp_scale": "width of the MLP as a multiple of hidden_dim",
    "num_heads": "heads of attention",
    "num_layers": "blocks",
    "resid_pdrop": "dropout of what each part adds to the residual stream",
    "rope": "rotary positions",
    "seq_len": "tokens in a sequence",
    "shuffle": "in a new order in every epoch; false: as the text stands",
    "text_key": "the field of a JSON line that holds the text",
    "tie_word_embeddings": "the output layer is the embedding",
    "tokenizer": "bytes, or the path of a Hugging Face tokenizer.json",
    "train_urls": "what is trained on",
    "use_bias": "biases in linear layers and norms",
    "use_layer_norm_weight": "norms have a weight",
    "use_parallel_residual": "attention and MLP side by side instead of one after the other",
    "validation_urls": "what is evaluated on",
    "theta": "base of the rotary wavelengths",
    "factor": "by how much positions are stretched",
    "low_freq_factor": "wavelengths longer than the original context by this part are stretched whole",
    "high_freq_factor": "wavelengths shorter than the original context by this part are not stretched",
    "original_max_position_embeddings": "the context that the model was first trained with, in tokens",
    "every": "steps between permanent checkpoints",
    "until": "the last step of this rule; None: for good",
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
    """The page, Markdown."""
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
    parts.append("## Other names\n\n| Also understood | Is |\n| --- | --- |")
    parts.append("\n".join(f"| `{name}` | `{real}` |" for name, real in sorted(keys.ALIASES.items())) + "\n")
    parts.append("## Accepted without effect\n\n| Levanter's key | Here |\n| --- | --- |")
    parts.append("\n".join(f"| `{name}` | {why} |" for name, why in sorted(keys.WITHOUT_COUNTERPART.items())))
    return "\n".join(parts) + "\n"


def undescribed() -> list[str]:
    """Fields that nothing says the meaning of."""
    return [line for line in document().splitlines() if line.endswith("|  |")]


def _choices(name: str, cls: type[draccus.ChoiceRegistry]) -> list[str]:
    """A section for each ``type``."""
    parts: list[str] = []
    for kind, choice in cls.get_known_choices().items():
        default = " (the default)" if kind == cls.default_choice_name() else ""
        parts += _section(f"{name}", choice, f", `type: {kind}`{default}")
    return parts


def _nested(cls: type[draccus.ChoiceRegistry]) -> dict[str, type[draccus.ChoiceRegistry]]:
    """The choices within the choices of ``cls``, by field."""
    found: dict[str, type[draccus.ChoiceRegistry]] = {}
    for choice in cls.get_known_choices().values():
        for name, hint in typing.get_type_hints(choice).items():
            if isinstance(hint, type) and issubclass(hint, draccus.ChoiceRegistry):
                found[name] = hint
    return found


def _section(name: str, cls: type, more: str = "") -> list[str]:
    lines = [f"## `{name}`{more}\n"]
    text = " ".join((inspect.getdoc(cls) or "").replace("``", "`").split())
    if text and not text.startswith(f"{cls.__name__}("):
        lines.append(f"{text}\n")
    rows = [_row(cls, field) for field in dataclasses.fields(cls)]
    if rows:
        lines += ["| Parameter | Type | Default | Meaning |", "| --- | --- | --- | --- |", *rows, ""]
    return lines


def _row(cls: type, field: dataclasses.Field[Any]) -> str:
    kind = TYPES.get(field.name) or str(field.type)
    meaning = _comment(cls, field.name) or MEANINGS.get(field.name, "")
    default = _default(field).replace("|", "\\|")
    return f"| `{field.name}` | {_cell(kind)} | `{default}` | {_cell(meaning)} |"


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
    """The comment of a field in the class that defines it."""
    for owner in cls.__mro__:
        if name in inspect.get_annotations(owner):
            return _comments(owner).get(name, "")
    return ""


def _comments(cls: type) -> dict[str, str]:
    """Field -> the comment beside it, else the comment lines right above it."""
    source = textwrap.dedent(inspect.getsource(cls))
    notes: dict[int, tuple[str, bool]] = {}  # line -> text, whether the line has nothing else
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


if __name__ == "__main__":
    try:
        sys.stdout.write(document())
    except ConfigError as error:
        sys.exit(f"midstream: {error}")
