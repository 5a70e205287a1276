"""Fields of Levanter's configuration that have no counterpart here.

Each is either *left out*, because the state after any update is the same without it, or *refused*, because it is not:
then only its neutral values are accepted. A neutral value has the same meaning with and without the field, and nothing
is reported about it. Releases: 1.2, marin-levanter 0.2.20 and 0.2.227.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from midstream_core.json_types import JsonValue
from midstream_engine.config.errors import ConfigError


@dataclass(frozen=True)
class LeftOut:
    """A field without a counterpart.

    ``reason`` says what happens here instead, or why other values are refused. ``neutral``: the values that change
    nothing; empty: any. ``refused``: whether any other value is refused.
    """

    reason: str
    neutral: tuple[JsonValue, ...] = (None,)
    refused: bool = False


def _left_out(reason: str, *neutral: Any) -> LeftOut:
    return LeftOut(reason, neutral or (None,))


def _refused(reason: str, *neutral: Any) -> LeftOut:
    return LeftOut(reason, neutral or (None,), refused=True)


def _unreported(reason: str) -> LeftOut:
    """Return a field of observation or storage alone: every value is neutral."""
    return LeftOut(reason, ())


_RUN_DIRECTORY = "all files of a run are in its run directory under trainer.root"
_CACHES = "token caches are built in one pass"
_EXPORT = "python -m midstream_engine.convert writes a checkpoint as a Hugging Face model"
_EVALUATED = "the loss of the validation sets is measured, nothing else"
_COMPLETE = "every sample of the datasets is trained on, and none is set aside"
_IMPORTED = "importing a checkpoint of such a run carries its data over (docs/how-to/import.md)"
_MESH = "the mesh has the axes data and model"
_NOT_READ = "Levanter does not read it either"
_PROFILE = "a trace has jax's own settings"
_SAVES = "checkpoints are written in the background, as docs/reference/checkpoint-format.md describes"
_TEXT = "datasets of text are read, not those of this format"
_WANDB = "metrics are logged by process 0, in its own thread"
_WATCH = "norms of single arrays are not logged"

FIELDS: dict[str, LeftOut] = {
    # The objective, the update, the data: refused.
    "adapter": _refused("all parameters are trained; there are no adapters here", None, {"type": "none"}),
    "data_seed": _refused("the order of new data follows trainer.seed; " + _IMPORTED),
    "epoch": _refused("training ends at trainer.num_train_steps, however often the data is repeated", 0, None),
    "initialize_from_checkpoint_path": _refused(
        "it continues model and optimizer from step 0; trainer.initialize_model_from begins with the model alone, "
        "trainer.initialize_from continues the run"
    ),
    "initialize_from_hf": _refused(
        "python -m midstream_engine.convert reads the model; trainer.initialize_model_from then names the result",
        False, None,
    ),
    "initialize_model_from_checkpoint_path": _refused("trainer.initialize_model_from is the same"),
    "pad_tokenizer_to_match_model": _refused("model.pad_vocab_to_multiple determines the embedding's rows", False),
    "train_seq_len": _refused("a sequence has model.seq_len tokens"),
    "use_hf_model_config": _refused("the section model has to be that of the checkpoint", False),
    "data.components": _refused("data.configs names the datasets of a new run; " + _IMPORTED, {}, None),
    "data.enforce_eos": _refused("every document ends with the end-of-text token", True),
    "data.experiment_budget": _refused(_COMPLETE),
    "data.format.type": _refused(_TEXT, "text"),
    "data.max_train_batches": _refused(_COMPLETE, None, {}),
    "data.num_validation_sequences": _refused(_COMPLETE, None, {}),
    "data.prior_context_phases": _refused("all sequences of a run have model.seq_len tokens", [], None),
    "data.revision": _refused("a dataset on Hugging Face is read at its newest revision"),
    "data.splits": _refused("the splits train and validation of a dataset on Hugging Face are read"),
    "data.stop_strategy": _refused("a dataset that is used up begins again", "restart"),
    "data.target_budget": _refused(_COMPLETE),
    "model.hybrid_norm": _refused("blocks have no norm after their parts", False),
    "model.input_embedding_norm": _refused("embeddings have no norm", False),
    "model.use_qk_norm": _refused("queries and keys have no norm", False, None),
    "trainer.quantization": _refused("matrices are multiplied in the precision of trainer.mp"),
    # Places, observation, speed: without them the state after an update is the same.
    "data.auto_build_caches": _left_out("token caches that are missing are built", True),
    "data.cache_catalog": _left_out("token caches are found by the digest of their text and tokenizer"),
    "data.cache_dir": _left_out("token caches are under trainer.root, or in the data.cache_dir of all"),  # a dataset's
    "data.cache_options.batch_size": _left_out(_CACHES, 128),
    "data.cache_options.num_shard_groups": _left_out(_CACHES, 128),
    "data.cache_options.target_size_per_flush": _left_out(_CACHES, "512MB"),
    "data.chat_template": _left_out(_TEXT),
    "data.permutation_type": _left_out("the order of new data is this engine's own", None, "feistel"),
    "data.shuffle_before_trainval_split": _left_out(_COMPLETE, True),
    "data.stream": _left_out("a dataset on Hugging Face is read once and completely", True),
    "data.tags": _left_out("validation sets are reported by name", None, []),
    "data.vocab_size": _left_out("the tokenizer determines it; data.tokenizer: ids:SIZE is for text without one"),
    "eval_harness": _left_out(_EVALUATED),
    "eval_harness_steps": _left_out(_EVALUATED, 10000),
    "hf_generation_eos_token_ids": _left_out(_EXPORT),
    "hf_save_dtype": _left_out(_EXPORT),
    "hf_save_path": _left_out(_EXPORT),
    "hf_save_steps": _left_out(_EXPORT, 10000),
    "hf_upload": _left_out(_EXPORT),
    "labeled_eval": _left_out(_EVALUATED),
    "log_entropy": _left_out(_EVALUATED, False),
    "merged_hf_save_path": _left_out(_EXPORT),
    "merged_hf_upload": _left_out(_EXPORT),
    "model.gradient_checkpointing_block_size": _left_out("each layer is a block"),
    "model.reference_checkpoint": _left_out(_EXPORT, None, "NousResearch/Llama-2-7b-hf"),
    "model.scan_layers": _left_out("layers are always stacked", True),
    "model.tokenizer": _left_out("the tokenizer is data.tokenizer"),
    "optimizer.epsilon": _unreported(_NOT_READ),  # of Lion
    "optimizer.gamma": _unreported(_NOT_READ),
    "optimizer.lr": _unreported(_NOT_READ),
    "optimizer.schedule_list": _unreported(_NOT_READ),
    "peft_hf_upload": _left_out(_EXPORT),
    "peft_save_path": _left_out(_EXPORT),
    "trainer.allow_nondivisible_batch_size": _left_out(
        "a batch must divide over the devices; an error names sizes that do", False
    ),
    "trainer.allow_partial_checkpoint": _left_out("a checkpoint is restored completely", False),
    "trainer.checkpointer.append_run_id_to_base_path": _left_out(_RUN_DIRECTORY, True),
    "trainer.checkpointer.debug": _unreported("saves are described in the log"),
    "trainer.checkpointer.delete_old_temp_checkpoints": _left_out(
        "the previous temporary checkpoint is deleted, whichever attempt wrote it", True
    ),
    "trainer.checkpointer.keep_last_temporary_checkpoints": _left_out("one temporary checkpoint is kept", 1),
    "trainer.checkpointer.temporary_base_path": _left_out(_RUN_DIRECTORY),
    "trainer.checkpointer.write": _unreported(_SAVES),
    "trainer.log_jaxprs": _left_out("not recorded", True, False),
    "trainer.log_xla_hlo": _left_out("not recorded", True, False),
    "trainer.profiler.create_perfetto_trace": _left_out(_PROFILE, False),
    "trainer.profiler.process_index": _left_out("process 0 writes the trace"),
    "trainer.profiler.profile_options": _unreported(_PROFILE),
    "trainer.profiler.upload": _unreported("traces stay in the run directory"),
    "trainer.progress_watchdog": _unreported("the host's stall_timeout ends an engine that makes no progress"),
    "trainer.ray": _left_out("there is no Ray here"),
    "trainer.ray.address": _left_out("there is no Ray here"),
    "trainer.ray.auto_start_cluster": _left_out("there is no Ray here", True),
    "trainer.ray.start_workers": _left_out("there is no Ray here", True),
    "trainer.replica_dcn_axis_size": _left_out(_MESH, 1),
    "trainer.replica_ici_axis_size": _left_out(_MESH, 1),
    "trainer.shutdown_at_exit": _left_out("the engine does not stop machines", False),
    "trainer.tracker.background": _left_out(_WANDB, True),
    "trainer.tracker.background_finish_timeout": _left_out(_WANDB, 120.0),
    "trainer.tracker.background_max_queue_size": _left_out(_WANDB, 10000),
    "trainer.tracker.fork_from": _left_out("a W&B run is continued under its own id"),
    "trainer.tracker.purge_step": _left_out("files of earlier attempts are kept"),
    "trainer.tracker.replicate_path": _left_out("metrics.jsonl has a copy of all metrics"),
    "trainer.tracker.service_teardown_timeout": _left_out(_WANDB, 60.0),
    "trainer.tracker.write_to_disk": _left_out("event files are written", True),
    "trainer.use_explicit_mesh_axes": _left_out("the mesh has axes of jax's type Auto", False),
    "trainer.watch": _left_out(_WATCH),
    "trainer.watch.include_histograms": _left_out(_WATCH, False),
    "trainer.watch.include_norms": _left_out(_WATCH, True, False),
    "trainer.watch.include_per_parameter_norms": _left_out(_WATCH, True, False),
    "trainer.watch.interval": _left_out(_WATCH, 10),
    "trainer.watch.split_scan_layers": _left_out(_WATCH, True, False),
    "trainer.watch.watch_targets": _left_out(_WATCH, ["grads", "params"]),
    "trainer.xla_dump_upload": _unreported("XLA's dumps stay where $XLA_FLAGS puts them"),
}  # fmt: skip

_DATASET = re.compile(r"data\.(configs|components)\.[^.]+\.")


def covers(name: str) -> bool:
    """Return whether ``name`` or a field within it is one of these."""
    name = canonical(name)
    return name in FIELDS or any(field.startswith(f"{name}.") for field in FIELDS)


def left_out(name: str, value: object, where: str = "") -> Iterator[str]:
    """Yield a line for each value under ``name`` that is left out and not neutral.

    Args:
        name: A field of ``FIELDS``, dotted.
        value: Its value: plain, or its own fields.
        where: Begins the lines: file and line of the field.

    Raises:
        ConfigError: A value is refused, or a field within it is unknown.
    """
    field = FIELDS.get(canonical(name))
    if isinstance(value, Mapping) and any(prefix.startswith(f"{canonical(name)}.") for prefix in FIELDS):
        for key, item in value.items():
            yield from left_out(f"{name}.{key}", item, where)
        return
    if field is None:
        raise ConfigError(f"{where}unknown key {name}")
    if not field.neutral or any(_equal(value, neutral) for neutral in field.neutral):
        return
    if field.refused:
        raise ConfigError(f"{where}{name}: {_short(value)} is not supported: {field.reason}")
    yield f"{where}{name} has no effect here: {field.reason}"


def canonical(name: str) -> str:
    """Return a field's name in ``FIELDS``.

    A dataset of a mixture has the fields of data, W&B those of the tracker.
    """
    return _DATASET.sub("data.", name).replace("trainer.wandb.", "trainer.tracker.")


def _equal(value: object, neutral: Any) -> bool:
    """Compare, with true and 1 as different values."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _short(value: object) -> str:
    text = repr(dict(value) if isinstance(value, Mapping) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."
