"""Configuration and arrays of an import, as a checkpoint's metadata shows them.

The numbers that determine batch, memory and bytes are translated here. The converter on the source translates all
settings, checks every array, and refuses what it cannot carry over.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import yaml

from midstream.errors import Exit, MidstreamError
from midstream.hosts.rpc.answer_limits import decode
from midstream.migrate.journal.json_values import section
from midstream.migrate.planning import model_arrays
from midstream_core.json_types import JsonObject, JsonValue, RecordFields, RunConfig
from midstream_core.precision import levanter_products, maxtext_products, precision_of
from midstream_core.records import ArrayEntry
from midstream_host.trainers.checkpoint_survey import (
    ARGUMENTS,
    HUGGING_FACE,
    LEVANTER,
    MAXTEXT,
    NEOX,
    TORCH_DCP,
    CheckpointSurvey,
)

NAMES = {
    NEOX: "GPT-NeoX", LEVANTER: "Levanter", HUGGING_FACE: "Hugging Face", TORCH_DCP: "torchtitan", MAXTEXT: "MaxText",
}  # fmt: skip
# Defaults of Levanter's code that differ from the engine's, as the converter applies them.
_LEVANTER_MODELS: Mapping[str, JsonObject] = {
    "gpt2": {"seq_len": 1024, "hidden_dim": 768, "num_layers": 12, "num_heads": 12},
    "llama": {
        "seq_len": 2048, "hidden_dim": 4096, "num_layers": 32, "num_heads": 32, "num_kv_heads": 32,
        "intermediate_dim": 11008,
    },
}  # fmt: skip
_LEVANTER_TRAINER: RunConfig = {"train_batch_size": 512, "num_train_steps": 400_000}
_ENGINE_TRAINER: RunConfig = {"train_batch_size": 32, "num_train_steps": 400_000}
MAX_NODES = 100_000  # values of a YAML file
MAX_YAML = 1 << 18  # characters; a value takes up to a kilobyte of memory while it is parsed
MAX_NUMBER = 2**31 - 1  # of steps, and of examples in a batch
_PADDING = 128  # rows of an imported model's embedding are a multiple of it
_HALF = {"BF16": "bfloat16", "F16": "float16"}  # types of safetensors
_EMBEDDING = "model/embeddings/token_embeddings/weight"  # of Levanter


@dataclass(frozen=True)
class ForeignRun:
    """The run that an import would make."""

    config: RecordFields  # the numbers of its run.yaml that a plan needs
    arrays: tuple[ArrayEntry, ...]
    data_paths: tuple[str, ...]  # on the source, with the tokens
    data_known: bool  # whether these are all of its data
    warnings: tuple[str, ...]  # what is given up, or not known

    @property
    def state_bytes(self) -> int:
        return sum(map(model_arrays.size_of, self.arrays))


class _ForeignLoader(yaml.SafeLoader):
    """A YAML loader that constructs no objects: a tagged value is a plain one.

    Aliases may not expand to much.
    """

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None and _expanded(node, {}) > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES:,} values, aliases expanded")
        return node


def _expanded(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Return the number of nodes with all aliases expanded.

    Raises:
        ValueError: A node contains itself.
    """
    size = sizes.get(id(node))
    if size == 0:
        raise ValueError("an alias names what contains it")
    if size is None:
        sizes[id(node)] = size = 0
        value: Any = node.value
        parts = [item for pair in value for item in pair] if isinstance(node, yaml.MappingNode) else value
        inner = parts if isinstance(node, yaml.CollectionNode) else ()
        size = sizes[id(node)] = 1 + sum(_expanded(item, sizes) for item in inner)
    return size


def _plain(loader: yaml.SafeLoader, _: str, node: yaml.Node) -> object:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(cast("yaml.ScalarNode", node))


_ForeignLoader.add_multi_constructor("", _plain)  # pyright: ignore[reportUnknownMemberType]


def foreign_run(survey: CheckpointSurvey, host: str, flags: Mapping[str, str]) -> ForeignRun:
    """Translate what a survey has found.

    Args:
        survey: The checkpoint.
        host: The host that it is on, for messages.
        flags: Engine flags of the user (``trainer.mp`` -> value); they configure an imported model.

    Raises:
        MidstreamError: The configuration is malformed or lacks a number, or the model is of an unknown type.
    """
    where = f"{host}:{survey.directory}"
    try:
        if survey.kind == NEOX:
            return _neox(survey)
        if survey.kind == TORCH_DCP:
            return _torch_dcp(survey)
        if survey.kind == MAXTEXT:
            return _maxtext(survey)
        return _levanter(survey) if survey.kind == LEVANTER else _hugging_face(survey, flags)
    except MidstreamError as error:
        raise MidstreamError(f"{where}: {error.message}", error.hint, Exit.REFUSED) from None
    except (
        KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, yaml.YAMLError,
    ) as error:  # fmt: skip
        what = f"{error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())[:200]
        raise MidstreamError(
            f"{where}: its configuration cannot be read: {what}", "docs/how-to/import.md says what can be imported",
            Exit.REFUSED,
        ) from None  # fmt: skip


def _mapping(name: str, text: str) -> RecordFields:
    if name.endswith(".json"):
        value = decode(text.encode("utf-8", "replace"))
    elif len(text) > MAX_YAML:
        raise ValueError(f"{name} has more than {MAX_YAML:,} characters")
    else:
        value = yaml.load(text, _ForeignLoader)
    if not isinstance(value, dict):
        raise ValueError(f"{name} is not a mapping")
    return cast("RecordFields", value)


# ------------------------------------------------------------------------------------------ GPT-NeoX


def _neox(survey: CheckpointSurvey) -> ForeignRun:
    settings: RecordFields = {}
    for name, text in survey.configs.items():
        settings |= {str(key).replace("-", "_"): value for key, value in _mapping(name, text).items()}
    embedding, mlp = survey.shapes["embedding"], survey.shapes["mlp"]
    hidden, heads = int(settings["hidden_size"]), int(settings["num_attention_heads"])
    activation, legacy = settings.get("activation", "gelu"), settings.get("mlp_type") == "llama"
    gated = activation in ("silu", "swish") if legacy else activation == "swiglu"
    model: dict[str, JsonValue] = {
        "seq_len": int(settings["seq_length"]), "hidden_dim": hidden, "num_layers": int(settings["num_layers"]),
        "num_heads": heads, "tie_word_embeddings": "head" not in survey.shapes,
        "attention_bias": bool(settings.get("use_bias_in_attn_linear", True)),
    }  # fmt: skip
    if settings.get("norm") in ("rmsnorm", "te_rmsnorm") and gated:
        joined = not legacy  # up and gate in one matrix
        mlp_bias = bool(settings.get("use_bias_in_mlp", True)) and not legacy
        model |= {
            "type": "llama", "num_kv_heads": int(settings.get("num_kv_heads") or heads), "mlp_bias": mlp_bias,
            "intermediate_dim": mlp[0] // (2 if joined else 1),
        }  # fmt: skip
    else:
        model |= {"type": "neox", "intermediate_dim": mlp[0], "rotary_pct": float(settings.get("rotary_pct", 1.0))}
    precision = settings.get("precision")
    if precision is None:
        on = [name for name in ("fp16", "bf16") if section(settings, name).get("enabled")]
        precision = {"fp16": "fp16", "bf16": "bfloat16"}[on[0]] if on else "fp32"
    trainer = {
        "train_batch_size": _neox_batch(settings, survey), "num_train_steps": _neox_steps(settings),
        "mp": "f32" if precision == "fp32" else "p=f32,c=bfloat16",
    }  # fmt: skip
    warnings = ["the state of torch's random generators has no counterpart and is given up"]
    if precision == "fp16":
        warnings.append("precision fp16 with its loss scale goes on as bfloat16; masters stay float32")
    if not survey.numbers.get("optimizer"):
        warnings.append("the checkpoint has no optimizer state: the import refuses it")
    config = _config(model, "adam", trainer)
    prefixes = settings.get("train_data_paths") or ([settings["data_path"]] if settings.get("data_path") else [])
    files = tuple(f"{prefix}{end}" for prefix in prefixes for end in (".bin", ".idx"))
    arrays = tuple(model_arrays.state_arrays(config, embedding[0]))
    return ForeignRun(config, arrays, files, bool(files), tuple(warnings))


def _neox_batch(settings: RunConfig, survey: CheckpointSurvey) -> int:
    if settings.get("train_batch_size") is not None:
        return int(settings["train_batch_size"])
    micro, steps = settings["train_micro_batch_size_per_gpu"], settings.get("gradient_accumulation_steps") or 1
    return int(micro) * int(steps) * survey.numbers["data_parallel"]


def _neox_steps(settings: RunConfig) -> int:
    return max(int(settings["train_iters"]), int(settings.get("lr_decay_iters") or 0))


# ------------------------------------------------------------------------------------------ Levanter


def _levanter(survey: CheckpointSurvey) -> ForeignRun:
    ((path, text),) = survey.configs.items()
    mapping = _mapping(path, text)
    given = dict(section(mapping, "model"))
    kind = str(given.get("type") or "gpt2")
    if "max_seq_len" in given:
        given["seq_len"] = given.pop("max_seq_len")
    model = {"type": kind, **_LEVANTER_MODELS.get(kind, {}), **given}
    optimizer = section(mapping, "optimizer")
    trainer = {**_LEVANTER_TRAINER, **section(mapping, "trainer")}
    trainer["matmul_precision"] = levanter_products(trainer)
    config = _config(model, str(optimizer.get("type") or "adam"), trainer)
    warnings = ["the training key is imported, but dropout uses it differently"]
    data = section(mapping, "data")
    rows = survey.shapes[_EMBEDDING][0] if _EMBEDDING in survey.shapes else 0
    if not rows and str(data.get("tokenizer")) == "passthrough" and data.get("vocab_size"):
        rows = int(data["vocab_size"])
    if not rows:
        rest, row = model_arrays.without_embedding(config)
        rows = max(1, (survey.size - rest) // row)
        warnings.append(
            f"the rows of the embedding are estimated from the checkpoint's size (about {rows:,}): its format is read "
            "by its library only"
        )
    caches = _cache_directories(data)
    local = tuple(posixpath.join(posixpath.dirname(path), cache) for cache in caches if "://" not in cache)
    warnings += [f"the data stays in {cache}" for cache in caches if "://" in cache]
    arrays = tuple(model_arrays.state_arrays(config, rows))
    return ForeignRun(config, arrays, local, bool(caches), tuple(warnings))


def _cache_directories(data: JsonObject) -> list[str]:
    """Return the token caches that ``data`` names: one, or one per part of a mixture."""
    parts: list[JsonValue] = [data, *section(data, "components").values(), *section(data, "configs").values()]
    directories = [cast("RecordFields", section_).get("cache_dir") for section_ in parts if isinstance(section_, dict)]
    return [str(directory) for directory in directories if directory]


# ------------------------------------------------------------------------------------------ torch (DCP)


def _torch_dcp(survey: CheckpointSurvey) -> ForeignRun:
    ((path, text),) = survey.configs.items()
    mapping = _mapping(path, text)
    training, rates = section(mapping, "training"), section(mapping, "lr_scheduler")
    described = section(section(mapping, "model_spec"), "model")
    first = described["layers"][0]
    attention = section(first, "attention")
    heads = int(attention["n_heads"])
    model: RecordFields = {
        "type": "llama", "seq_len": int(training["seq_len"]), "hidden_dim": int(described["dim"]),
        "num_layers": len(described["layers"]), "num_heads": heads,
        "num_kv_heads": int(attention.get("n_kv_heads") or heads), "head_dim": attention.get("head_dim"),
        "intermediate_dim": int(section(section(first, "feed_forward"), "w1")["out_features"]),
        "tie_word_embeddings": bool(described.get("enable_weight_tying")),
    }  # fmt: skip
    batch, own = (int(training.get(name, -1)) for name in ("global_batch_size", "local_batch_size"))
    if batch <= 0:
        batch = own * survey.numbers["data_parallel"]
    trainer: RecordFields = {
        "num_train_steps": int(rates.get("total_steps") or training["steps"]), "train_batch_size": batch,
        "mp": f"p={training.get('dtype', 'float32')},c={training.get('mixed_precision_param', 'bfloat16')}",
    }  # fmt: skip
    if not survey.numbers["optimizer"]:
        raise ValueError("the checkpoint has no state of AdamW: torchtitan's last save has the model alone")
    rows = next(shape[0] for name, shape in survey.shapes.items() if name.endswith("tok_embeddings.weight"))
    config = _config(model, "adam", trainer)
    warnings = ("the loader's position is not imported: name the data with -- --data.train_urls FILES",)
    return ForeignRun(config, tuple(model_arrays.state_arrays(config, rows)), (), False, warnings)


# ------------------------------------------------------------------------------------------ MaxText


def _maxtext(survey: CheckpointSurvey) -> ForeignRun:
    ((path, text),) = survey.configs.items()
    settings = _mapping(path, text)

    def size(name: str) -> int:
        return int(settings[name] if name in settings else settings[f"base_{name}"])

    if not survey.numbers["optimizer"]:
        raise ValueError("the checkpoint has no state of AdamW: MaxText's own checkpoints have it")
    model: RecordFields = {
        "type": "llama", "seq_len": int(settings["max_target_length"]), "hidden_dim": size("emb_dim"),
        "num_layers": size("num_decoder_layers"), "num_heads": size("num_query_heads"),
        "num_kv_heads": size("num_kv_heads"), "head_dim": int(settings["head_dim"]),
        "intermediate_dim": size("mlp_dim"), "tie_word_embeddings": bool(settings["logits_via_embedding"]),
    }  # fmt: skip
    scheduled = int(settings["learning_rate_schedule_steps"])
    trainer: RecordFields = {
        "num_train_steps": int(settings["steps"]) if scheduled == -1 else scheduled,
        "train_batch_size": int(settings["global_batch_size_to_train_on"]),
        "mp": f"p={settings['weight_dtype']},c={settings['dtype']}",
        "matmul_precision": maxtext_products(settings.get("matmul_precision")),
    }  # fmt: skip
    config = _config(model, "adam", trainer)
    warnings = (
        f"step {survey.step} is that of its name: its arrays, which the import reads, have the number that counts",
        "the loader's position is not imported: name the data with -- --data.train_urls FILES",
    )
    return ForeignRun(
        config, tuple(model_arrays.state_arrays(config, int(settings["vocab_size"]))), (), False, warnings
    )


# ------------------------------------------------------------------------------------------ Hugging Face


def _hugging_face(survey: CheckpointSurvey, flags: Mapping[str, str]) -> ForeignRun:
    mapping = _mapping("config.json", survey.configs["config.json"])
    kind = mapping.get("model_type")
    if kind == "gpt2":
        hidden = int(mapping["n_embd"])
        model: RecordFields = {
            "type": "gpt2", "seq_len": int(mapping["n_positions"]), "hidden_dim": hidden,
            "num_layers": int(mapping["n_layer"]), "num_heads": int(mapping["n_head"]),
            "mlp_scale": (mapping.get("n_inner") or 4 * hidden) // hidden,
        }  # fmt: skip
    elif kind in ("llama", "gpt_neox"):
        heads = int(mapping["num_attention_heads"])
        model = {
            "type": "llama" if kind == "llama" else "neox", "seq_len": int(mapping["max_position_embeddings"]),
            "hidden_dim": int(mapping["hidden_size"]), "intermediate_dim": int(mapping["intermediate_size"]),
            "num_layers": int(mapping["num_hidden_layers"]), "num_heads": heads,
            "tie_word_embeddings": bool(mapping.get("tie_word_embeddings", False)),
            "attention_bias": bool(mapping.get("attention_bias", kind != "llama")),
        }  # fmt: skip
        if kind == "llama":
            model |= {
                "num_kv_heads": int(mapping.get("num_key_value_heads") or heads), "head_dim": mapping.get("head_dim"),
                "mlp_bias": bool(mapping.get("mlp_bias", False)),
            }  # fmt: skip
    else:
        raise ValueError(f"model_type {kind!r} is none of gpt2, llama, gpt_neox")
    trainer = dict(_ENGINE_TRAINER)
    trained = bool(survey.numbers["optimizer"])
    if trained:
        trainer |= {"num_train_steps": survey.numbers["steps"], "train_batch_size": survey.numbers["batch"]}
        types = _mapping(ARGUMENTS, survey.configs[ARGUMENTS])
        stored = _HALF.get(str(types["weights"][0]), "float32") if len(types["weights"]) == 1 else "float32"
        trainer["mp"] = f"p={stored},c={'bfloat16' if types['half'] else stored}"
    for name, text in flags.items():
        section_name, _, key = name.partition(".")
        if section_name == "trainer" and "." not in key:
            trainer[key] = yaml.load(text, _ForeignLoader)
    config = _config(model, flags.get("optimizer.type", "adam"), trainer)
    if not any(name.startswith("data.") for name in flags):
        raise ValueError("a model has no data: name it with -- --data.train_urls FILES")
    start = "a model has no optimizer: moments, counts and schedule start at zero"
    if trained:
        start = "Trainer's order of the data is not imported: the data here goes on at sample step x batch"
    warnings = (start, "how many tokens its text has is not known before it is tokenized")
    rows = -(-int(mapping["vocab_size"]) // _PADDING) * _PADDING
    return ForeignRun(config, tuple(model_arrays.state_arrays(config, rows)), (), False, warnings)


def _config(model: JsonObject, optimizer: str, trainer: JsonObject) -> RecordFields:
    """Return the sections of a run.yaml.

    Numbers that determine only the learning rate are left out.

    Raises:
        ValueError: A number of steps, or a batch, is one that no run has.
    """
    batch: object = trainer["train_batch_size"]  # or its schedule: [{start: STEP, value: EXAMPLES}, ...]
    sizes = [entry["value"] for entry in cast("list[RecordFields]", batch)] if isinstance(batch, list) else [batch]
    for name, value in [
        ("num_train_steps", trainer["num_train_steps"]),
        *(("train_batch_size", size) for size in sizes),
    ]:
        if type(value) is not int or not 0 < value <= MAX_NUMBER:
            raise ValueError(f"trainer.{name} is no number from 1 to {MAX_NUMBER:,}")
    return {"model": dict(model), "optimizer": {"type": optimizer}, "trainer": dict(trainer), "data": {}}


def with_parameters(run: ForeignRun, dtype: str) -> ForeignRun:
    """Return the run with parameters of another type (``--cast-parameters``)."""
    trainer = section(run.config, "trainer")
    mp = str(precision_of(trainer.get("mp")).with_parameters(dtype))
    config = {**run.config, "trainer": {**trainer, "mp": mp}}
    rows = next(array.shape[0] for array in run.arrays if array.name == "model/token_embeddings/weight")
    note = f"parameters are rounded to {dtype} (--cast-parameters)"
    arrays = tuple(model_arrays.state_arrays(config, rows))
    return ForeignRun(config, arrays, run.data_paths, run.data_known, (*run.warnings, note))
