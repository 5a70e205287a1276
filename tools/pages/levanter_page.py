"""Generator of the page about Levanter's fields.

FIELDS is ``tests/fixtures/levanter/fields.json``, which lists the fields of the configuration guide and of several
releases with their defaults; PAGE is ``docs/reference/levanter.md``. What a field is here follows from the code: our
dataclasses, the aliases and the fields without a counterpart.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import draccus

from midstream_engine.config import keys
from midstream_engine.config.keep_policy import KeepEvery
from midstream_engine.config.levanter_fields import FIELDS, LeftOut, canonical, covers
from midstream_engine.config.train import TrainLmConfig

INTRODUCTION = """\
# Levanter's fields

<!-- Written by `make pages`; a test compares. -->

After this page you know what each field of a Levanter configuration means here: those of Levanter's configuration
guide, and of `TrainLmConfig` in {releases}.

- **same**: the same meaning and default. A default that differs is given.
- **differs**: the field is read, and differs as described.
- **left out**: the field has no counterpart, and the state after any update is the same without it. A line says so,
  unless the value is neutral.
- **refused**: the field would change the training. Its neutral values are accepted, others end with one line.

`--config_path` reads a configuration as a user writes it, and the one with all fields that Levanter writes itself
(`draccus.dump`): Python objects in it are read as their names, and never constructed. Importing a checkpoint
([Import a run](../how-to/import.md)) writes out the defaults of Levanter's code, drops what belongs to the machine or
to the start of the run (`id`, `load_checkpoint`, `initialize_from`, `distributed`, paths), and reads the data's
caches in Levanter's order.

| Field | Levanter's default | Here |
| --- | --- | --- |
"""

# Differences in meaning; those in spelling and default follow from the code.
DIFFERENCES = {
    "data.cache_dir": "gs://, s3:// and https:// alone: token caches are shared there; others are under trainer.root",
    "data.configs": "the datasets of a mixture, each with train_urls, validation_urls, id, name, text_key, max_bytes",
    "data.name": "the configuration of a dataset on Hugging Face",
    "data.shuffle": "true or false; the order is this engine's own. Imports keep Levanter's",
    "data.tokenizer": "required: bytes, the path of a tokenizer.json, or ids:SIZE; no name of Hugging Face's",
    "data.train_weights": "of each dataset, without stages. Imports keep stages",
    "model": "type gpt2, llama or neox; gpt2 is the default",
    "model.attn_backend": "vanilla, xla, cudnn, splash or triton; nvte is cudnn, jax_flash is xla",
    "model.gradient_checkpointing": "also names of policies; a policy with single fields becomes the nearest one",
    "optimizer": "type adam, adopt, cautious, lion or muon",
    "optimizer.lr_schedule": "a name, or a mapping with type; see [Configuration](configuration.md)",
    "optimizer.skip_bad_steps": "a skipped update counts in the learning-rate schedule",
    "trainer.checkpointer.base_path": "gs:// and s3:// alone; paths are refused: trainer.root has all runs",
    "trainer.checkpointer.keep": "the last entry may omit until",
    "trainer.distributed": "the launcher sets it",
    "trainer.distributed.initialize_jax_distributed": "true where SLURM or the TPU pod provides the rest",
    "trainer.jax_config": "without defaults of its own; jax_default_matmul_precision becomes trainer.matmul_precision "
    "where that has its value: highest or float32, default or bfloat16. Others are refused, and highest where mp "
    "computes in 16 bits",
    "trainer.load_checkpoint": "false is refused where the run has checkpoints, which Levanter would replace",
    "trainer.load_checkpoint_path": "one path, until the run has a checkpoint of its own",
    "trainer.log_dir": "besides the log in the run directory",
    "trainer.mesh": "two axes: data and model",
    "trainer.mesh.axes": "data: -1, replica: 1, and model, which is trainer.model_axis_size",
    "trainer.mesh.dcn_axes": "replica_dcn: -1 or 1",
    "trainer.model_averaging": "evaluated instead of the model, and saved with it",
    "trainer.mp": "half is float16 on every device; parameters keep the type",
    "trainer.require_accelerator": "null trains on a CPU, too",
    "trainer.seed": "new models, the order of new data and dropout are drawn with other numbers",
    "trainer.tracker": "metrics.jsonl is always written; without a tracker, nothing else",
    "trainer.train_batch_size": "a change applies from where the run resumes, and no data is repeated or skipped",
    "trainer.wandb": "trainer.tracker",
}
# Defaults as they stand in the guide and in code, and their values.
_SPELLINGS = {
    "list": [], "dict": {}, "()": [], "--": {}, "null": None, "true": True, "false": False,
    "15 minutes": "15m", "10000 steps": [KeepEvery(10_000)], "-100": None, "TextLmDatasetFormat": None,
}  # fmt: skip
_NAMES = {
    "None": "null", "True": "true", "False": "false", "DEFAULT_IGNORE_INDEX": "-100",
    "DEFAULT_LM_DATA_SHUFFLE": "blocks", "StopStrategy.RESTART_STRATEGY": "restart",
    "dataclasses.field(kw_only=True)": "required", "timedelta(minutes=15)": "15m", "[dict(every=10000)]": "10000 steps",
    "Path('logs/')": "logs/", "jmp.get_policy('f32')": "f32", "dict(DEFAULT_ICI_AXIS_SPEC)": "",
    "dict(DEFAULT_DCN_AXIS_SPEC)": "", "cast(list[Target], ['grads', 'params'])": "['grads', 'params']",
    "copy.deepcopy(DEFAULT_JAX_CONFIG)": "",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Row:
    """One field: its dotted name, Levanter's defaults, and its meaning here.

    A dotted name is, for example, ``model[llama].rope``.
    """

    name: str
    defaults: tuple[str, ...]
    status: str  # same, differs, left out, refused
    text: str


def page(lists: Mapping[str, Mapping[str, str]]) -> str:
    """Return the page as Markdown.

    ``lists``: release or ``guide`` -> field -> default.
    """
    releases = [name for name in lists if name != "guide"]
    named = ", ".join(f"Levanter {name}" if name == "1.2" else f"marin-levanter {name}" for name in releases)
    lines = [INTRODUCTION.format(releases=named)]
    for row in _joined(list(rows(lists))):
        default = ", ".join(f"`{one}`" for one in row.defaults if one).replace("|", "\\|")
        lines.append(f"| `{row.name}` | {default} | {row.status}{f': {row.text}' if row.text else ''} |\n")
    return "".join(lines)


def _joined(found: list[Row]) -> Iterator[Row]:
    """Yield the rows, with those that are equal in all choices as one.

    Choices are as in ``optimizer[adam]``, ``optimizer[lion]``.
    """
    groups: dict[str, list[Row]] = {}
    for row in found:
        groups.setdefault(plain(row.name), []).append(row)
    for name, group in sorted(groups.items()):
        if len({(row.defaults, row.status, row.text) for row in group}) == 1:
            yield dataclasses.replace(group[0], name=name)
        else:
            yield from group


def rows(lists: Mapping[str, Mapping[str, str]]) -> Iterator[Row]:
    """Yield a row for each field, by name.

    Raises:
        ValueError: A field is neither ours nor in ``FIELDS``.
    """
    names = dict.fromkeys(name for fields in lists.values() for name in fields)
    for name in sorted(names):
        if name not in DIFFERENCES and any(other != name and plain(other) == name for other in names):
            continue  # from an example: the field of the class has a row
        if any(other.startswith((f"{name}.", f"{name}[")) for other in names) and plain(name) not in DIFFERENCES:
            continue  # a section: its fields have rows
        spellings = (name, plain(name))
        defaults = tuple(
            dict.fromkeys(_short(fields[one]) for fields in lists.values() for one in spellings if one in fields)
        )
        yield Row(name, defaults, *_described(name, defaults))


def _described(name: str, defaults: tuple[str, ...]) -> tuple[str, str]:
    bare = plain(name)
    if bare in DIFFERENCES:
        return "differs", DIFFERENCES[bare]
    if bare in keys.ALIASES:
        return "same", f"`{keys.ALIASES[bare]}`"
    found = ours(name)
    if found is not None:
        own = found.default if found.default_factory is dataclasses.MISSING else found.default_factory()
        if own is dataclasses.MISSING or all(_equals(one, own) for one in defaults if one):
            return "same", ""
        return "same", f"default `{_value(own)}`"
    if bare.endswith(".type"):
        return "same", ""
    field = _left_out(bare)
    accepted = ", ".join(f"`{_value(one)}`" for one in field.neutral)
    if field.refused:
        return "refused", f"{field.reason} (accepted: {accepted})"
    return "left out", field.reason


def _left_out(name: str) -> LeftOut:
    parts = canonical(name).split(".")
    for end in range(len(parts), 0, -1):
        if field := FIELDS.get(".".join(parts[:end])):
            return field
    if covers(name):  # its fields have reasons of their own
        return next(field for one, field in FIELDS.items() if one.startswith(f"{name}."))
    raise ValueError(f"{name} is neither a field here nor in levanter_fields.FIELDS")


def ours(name: str) -> dataclasses.Field[Any] | None:
    """Return our field of the same name; None if there is none.

    ``[CHOICE]`` selects one of several classes.
    """
    classes: list[type] = [TrainLmConfig]
    found: dataclasses.Field[Any] | None = None
    for part in name.split("."):
        key, _, choice = part.partition("[")
        fields = [(cls, field) for cls in classes for field in dataclasses.fields(cls) if field.name == key]
        if not fields:
            return None
        cls, found = fields[0]
        classes = _classes_of(typing.get_type_hints(cls)[key], choice.rstrip("]"))
    return found


def _classes_of(hint: Any, choice: str) -> list[type]:
    """Return the dataclasses of a field's values.

    A registry gives the class named ``choice``, or all of them without a choice.
    """
    inner = [hint, *typing.get_args(hint)]
    classes = [one for one in inner if isinstance(one, type) and dataclasses.is_dataclass(one)]
    if classes and issubclass(classes[0], draccus.ChoiceRegistry):
        choices = classes[0].get_known_choices()
        return [choices[choice]] if choice in choices else list(choices.values())
    return classes


def plain(name: str) -> str:
    """Return a field's name without the choices in it."""
    return re.sub(r"\[.*?\]", "", name)


def _equals(text: str, own: Any) -> bool:
    """Return whether Levanter's default, from its source or guide, is ours (``own``)."""
    if text in _SPELLINGS:
        return _SPELLINGS[text] == own or (_SPELLINGS[text] is None and own in ([], {}))
    if own in (text, [text], text.rpartition(".")[2]):  # the last: an enumeration
        return True
    try:
        value = ast.literal_eval(text.replace(",", "") if re.fullmatch(r"[\d,]+", text) else text)
    except (ValueError, SyntaxError):
        return text == str(own)
    return value == own or [value] == own


def _short(default: str) -> str:
    """Return a default as the page has it; empty: it says nothing."""
    default = default.split("`")[0].strip()
    if default == "an example" or re.fullmatch(r"[\w.]*Config(\(\))?", default):
        return ""
    default = _NAMES.get(default, default)
    quoted = re.fullmatch(r"(['\"])(.*)\1", default)
    return quoted[2] if quoted else default


def _value(value: Any) -> str:
    """Return a value as YAML has it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
