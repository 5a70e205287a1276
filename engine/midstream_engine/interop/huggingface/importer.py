"""Import of Hugging Face model directories as checkpoints of step 0.

Arrays are streamed: memory has the chunks that are being written.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
import yaml

from midstream_core.json_types import JsonValue
from midstream_core.precision import Precision
from midstream_core.records import Manifest, checkpoint_name
from midstream_engine.checkpoint.boxes import Box, extent, full_box, within
from midstream_engine.checkpoint.dtypes import numpy_dtype
from midstream_engine.checkpoint.saving.checkpoint_writer import train_document, write
from midstream_engine.checkpoint.saving.commit import commit
from midstream_engine.checkpoint.saving.snapshot import HostArray
from midstream_engine.config.load import from_mapping
from midstream_engine.config.model import LmConfig
from midstream_engine.config.train import TrainLmConfig
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.exact_numbers import checked
from midstream_engine.interop.foreign_run import ImportedRunPaths, state_arrays
from midstream_engine.interop.foreign_values import ForeignValue
from midstream_engine.interop.huggingface.configuration import from_huggingface, left_out
from midstream_engine.interop.huggingface.names import CONSTANTS, PREFIX, TensorRule, rules_of, tied_head, unpadded
from midstream_engine.interop.tensor_files import read_tensors
from midstream_engine.interop.tokenizer_files import FOLDER, carry, copy_files, files_at

CONFIG = "train.yaml"
_OF_A_TRAINING = ("optimizer.pt", "optimizer.bin", "scheduler.pt", "trainer_state.json")  # of transformers' Trainer


@dataclasses.dataclass(frozen=True)
class _Converted(HostArray):
    """An array of ours whose contents are made from Hugging Face's tensors on demand."""

    sources: Sequence[np.ndarray] = ()  # one a layer, or one
    rule: TensorRule | None = None  # None: zeros
    vocab_size: int = 0
    rounds: bool = False  # whether numbers may be rounded to the dtype

    def part(self, box: Box, out: np.ndarray | None = None) -> np.ndarray:
        result = np.empty(extent(box), numpy_dtype(self.dtype)) if out is None else out
        if self.rule is None:
            result[...] = 0
        elif self.rule.stacked:
            for number, layer in enumerate(range(*box[0])):
                self._fill(result[number], self.sources[layer], self.axes[1:], self.shape[1:], box[1:])
        else:
            self._fill(result, self.sources[0], self.axes, self.shape, box)
        return result

    def _fill(
        self, result: np.ndarray, source: np.ndarray, axes: Sequence[str], shape: Sequence[int], box: Box
    ) -> None:
        assert self.rule is not None
        real = unpadded(axes, shape, self.vocab_size)
        view = self.rule.form.ours(source, real)
        present = tuple((min(start, size), min(stop, size)) for (start, stop), size in zip(box, real, strict=True))
        if present != box:
            result[...] = 0  # the rows that pad the vocabulary
        region = view[tuple(slice(*limits) for limits in present)]
        result[within(present, box)] = checked(self.name, region, numpy_dtype(self.dtype), rounds=self.rounds)


def import_model(source: str, directory: str, final: str, parameters: str | None = None) -> tuple[Manifest, list[str]]:
    """Import the Hugging Face model ``source`` as a checkpoint of step 0.

    The optimizer is fresh.

    Writes ``directory``: ``checkpoints/step-0-a000``, the tokenizer's files, and ``train.yaml``, a configuration that
    starts from it. Returns the manifest, and a line for each setting that is not carried over.

    Args:
        source: The model directory.
        directory: Where to write.
        final: The path to which ``directory`` will be renamed.
        parameters: Type to which parameters are rounded; None: float32, which must keep every number.

    Raises:
        ConversionError: A tensor of the source is unused, an array of the model is missing or has another shape, or a
            number is not finite or would be rounded.
    """
    model_config, model, vocab_size = described(source)
    files = files_at(source)
    carried = None
    if "tokenizer.json" in files:
        carried = carry(files, os.path.join(directory, "data"), f"{final}/data")
    elif files:
        os.makedirs(os.path.join(directory, FOLDER))
        copy_files(files, os.path.join(directory, FOLDER))
    mapping = started_with(model, source, final, carried)
    if parameters is not None:
        mapping["trainer"]["mp"] = str(Precision.parse("f32").with_parameters(parameters))
    config = from_mapping(mapping).config
    arrays = list(converted(config, vocab_size, {PREFIX: read_tensors(source)}, rounds=parameters is not None))
    state = {
        "step": 0, "optimizer_count": 0, "schedule_count": 0, "next_sample": 0,
        "batch_schedule": config.trainer.batch_schedule().to_json(), "seed": config.trainer.seed,
        "seq_len": model.seq_len, "shuffle": config.data.shuffle, "data_digest": "", "tokenizer": "",
    }  # fmt: skip
    provenance = {
        "time": time.time(), "config": config.resolved(), "converted_from": "huggingface",
        "huggingface": model_config, "vocab_size": vocab_size,
    }  # fmt: skip
    paths = ImportedRunPaths(directory, os.path.basename(final) or "converted")
    target = paths.checkpoint(checkpoint_name(0, 0))
    os.makedirs(paths.checkpoints)
    written = write(target, arrays, train_document(state, provenance, None))
    with open(os.path.join(directory, CONFIG), "w", encoding="utf-8") as file:
        file.write("# Made from a Hugging Face model. Put your text in: data.train_urls.\n")
        file.writelines(f"# {note}\n" for note in not_imported(source, model_config))
        yaml.safe_dump(mapping, file, sort_keys=False)
    return commit(paths, target, written, step=0, attempt=0, epoch=1), not_imported(source, model_config)


def described(source: str) -> tuple[dict[str, ForeignValue], LmConfig, int]:
    """Return config.json, our model configuration, and the size of the vocabulary.

    ``source``: a model directory.
    """
    config = _read_json(os.path.join(source, "config.json"))
    model, vocab_size = from_huggingface(config)
    # The embedding has this many rows, whatever the size of the tokenizer.
    return config, dataclasses.replace(model, pad_vocab_to_multiple=model.padded_vocab(vocab_size)), vocab_size


def not_imported(source: str, config: dict[str, JsonValue], imported: Sequence[str] = ()) -> list[str]:
    """Return a line for each part of a training that is not imported.

    ``config``: its config.json; ``imported``: files that are imported.
    """
    names = [name for name in _OF_A_TRAINING if name not in imported and os.path.exists(os.path.join(source, name))]
    lines = [f"{', '.join(names)}: not imported: the model begins at step 0 with a new optimizer"] if names else []
    return [*lines, *left_out(config)]


def converted(
    config: TrainLmConfig,
    vocab_size: int,
    sources: Mapping[str, Mapping[str, np.ndarray]],
    *,
    rounds: bool = False,
    counts: Mapping[str, int] = MappingProxyType({}),
) -> Iterator[HostArray]:
    """Yield every array of a state; those without a source are zero.

    Args:
        config: Of the run.
        vocab_size: Rows of the vocabulary without padding.
        sources: Hugging Face's tensors by name, by the prefix of our arrays: ``PREFIX`` for the parameters.
        rounds: Whether parameters may be rounded to the configuration's type.
        counts: Values of scalars, by our names.

    Raises:
        ConversionError: A tensor is missing, unused, or has another shape.
    """
    logical = state_arrays(config, vocab_size)
    tensors, rules = {}, {}
    for prefix, given in sources.items():
        tensors |= {prefix + name: tensor for name, tensor in _with_prefix(config.model, given).items()}
        rules |= {prefix + rule.ours: (prefix, rule) for rule in rules_of(config.model)}
    used = _check_tied(config.model, tensors)
    strange = sorted(name for name in logical if name.startswith(PREFIX) and name not in rules)
    assert not strange, strange
    arrays = []
    for name, array in logical.items():
        prefix, rule = rules.get(name, ("", None))
        if rule is None:
            value = jnp.int32(counts[name]) if name in counts else array.value
            if isinstance(value, jax.Array):
                piece = (full_box(array.shape), np.asarray(value))
                arrays.append(HostArray(name, array.axes, array.shape, array.dtype, [piece]))
            else:
                arrays.append(_Converted(name, array.axes, array.shape, array.dtype, []))
            continue
        names = [prefix + rule.theirs.format(layer) for layer in range(array.shape[0] if rule.stacked else 1)]
        axes, shape = (array.axes[1:], array.shape[1:]) if rule.stacked else (array.axes, array.shape)
        expected = rule.form.shape(unpadded(axes, shape, vocab_size))
        for theirs_name in names:
            if theirs_name not in tensors:
                raise ConversionError(f"the source lacks {_shown(theirs_name)}, which config.json calls for")
            if tensors[theirs_name].shape != expected:
                raise ConversionError(
                    f"{_shown(theirs_name)} has shape {tensors[theirs_name].shape}, config.json calls for {expected}"
                )
        used.update(names)
        made_of = [tensors[name] for name in names]
        rounded = rounds and prefix == PREFIX
        arrays.append(
            _Converted(name, array.axes, array.shape, array.dtype, [], None, made_of, rule, vocab_size, rounded)
        )
    unused = sorted(_shown(name) for name in tensors.keys() - used if not CONSTANTS.fullmatch(_shown(name)))
    if unused:
        raise ConversionError(f"{len(unused)} tensors of the source have no place in the model: {', '.join(unused)}")
    yield from arrays


def _shown(name: str) -> str:
    """Return a tensor's name for messages: that of a parameter is Hugging Face's own."""
    return name.removeprefix(PREFIX)


def _with_prefix(config: LmConfig, tensors: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """Add the prefix ``transformer.`` that OpenAI's GPT-2 was saved without."""
    first = rules_of(config)[0].theirs
    prefix = first.split(".")[0] + "."
    if first in tensors or first.removeprefix(prefix) not in tensors:
        return tensors
    return {name if name.startswith("lm_head") else prefix + name: tensor for name, tensor in tensors.items()}


def _check_tied(config: LmConfig, tensors: dict[str, np.ndarray]) -> set[str]:
    """Return the name of a tied head that is stored twice; check that both are equal."""
    tied = tied_head(config)
    if tied is None or PREFIX + tied[0] not in tensors or PREFIX + tied[1] not in tensors:
        return set()
    head, table = tensors[PREFIX + tied[0]], tensors[PREFIX + tied[1]]
    if head.shape != table.shape or not np.array_equal(head, table):
        raise ConversionError(f"{tied[0]} differs from {tied[1]}, and config.json says that they are tied")
    return {PREFIX + tied[0]}


def started_with(model: LmConfig, source: str, final: str, tokenizer: str | None) -> dict[str, ForeignValue]:
    """Return a configuration that begins with the model at ``final``.

    ``tokenizer``: value of ``data.tokenizer``; None: there is none, and training needs one.
    """
    import draccus

    data: dict[str, JsonValue] = {"tokenizer": tokenizer, "train_urls": []}
    if tokenizer is not None:
        eos = _eos_token(source)
        if eos is not None:
            data["eos_token"] = eos
    encoded: dict[str, JsonValue] = draccus.encode(TrainLmConfig(model=model))["model"]
    return {"data": data, "model": encoded, "trainer": {"initialize_model_from": final}}


def _eos_token(source: str) -> str | None:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        path = os.path.join(source, name)
        token = _read_json(path).get("eos_token") if os.path.exists(path) else None
        if token:
            return token["content"] if isinstance(token, dict) else str(token)
    return None


def _read_json(path: str) -> dict[str, ForeignValue]:
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except FileNotFoundError:
        raise ConversionError(f"{path}: no such file; a Hugging Face model directory has one") from None
    except ValueError as error:
        raise ConversionError(f"{path}: not JSON ({error})") from None
    if not isinstance(value, dict):
        raise ConversionError(f"{path}: not a JSON object")
    return value
