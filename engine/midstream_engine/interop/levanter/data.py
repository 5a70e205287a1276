"""The data of a Levanter configuration: token caches and their order.

Two generations of configurations are supported: those with ``components``, and those of Levanter 1.2 with ``configs``
or with one dataset's fields at the top. Their defaults differ: the first shuffles in blocks and always mixes; the
second does not shuffle, and does not mix a single dataset.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from midstream_core.json_types import JsonValue
from midstream_core.object_store.urls import in_bucket
from midstream_engine.config.trainer import TrainerConfig
from midstream_engine.data import threefry
from midstream_engine.data.errors import DataError
from midstream_engine.data.levanter_cache import INDEX, LevanterCache, open_cache
from midstream_engine.data.levanter_order import PERMUTATIONS
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_values import ForeignConfig, ForeignValue

# Defaults of Levanter's code.
_CACHE_DIR, _BLOCK = "cache/", 2048
_BLOCKS = {"io_block_size": 256, "window_blocks": 512}
_REFUSED = ("experiment_budget", "target_budget", "max_train_batches", "num_validation_sequences")
# Fields of the data that are used here, or do not matter for a finished cache.
USED = {
    "components", "configs", "cache_dir", "cache_options", "enforce_eos", "auto_build_caches", "shuffle", "train_urls",
    "permutation_type", "train_weights", "stop_strategy", "mixture_block_size", "vocab_size", "format", "id", "name",
    "stream", "tags", "plaintext", "text_key", "chat_template", "splits", "shuffle_before_trainval_split", "revision",
}  # fmt: skip


@dataclass(frozen=True)
class Data:
    """Token caches and their order.

    ``order`` is that of :mod:`midstream_engine.data.levanter_order`; ``eos`` is the id that ends documents.
    """

    caches: dict[str, LevanterCache]
    order: dict[str, ForeignValue]
    eos: int | None


def names_data(config: ForeignConfig) -> bool:
    """Return whether a configuration names its data."""
    data = config.get("data") or {}
    texts = ("components", "configs", "train_urls", "id")
    if any(data.get(key) for key in texts):
        return True
    # Levanter's own dumps have every field, so its default says nothing there.
    dumped = any(key in data for key in texts)
    return bool(data.get("cache_dir")) and not (dumped and data["cache_dir"] == _CACHE_DIR)


def read_data(
    config: ForeignConfig, near: Sequence[str], given: Sequence[str], trainer: TrainerConfig, seed: int
) -> Data:
    """Open the data of the configuration ``config``.

    Args:
        config: Levanter's configuration.
        near: Directories to which its paths may be relative.
        given: Present paths of the caches, instead of those of the configuration.
        trainer: Our trainer configuration.
        seed: Seed of the run.

    Raises:
        ConversionError: A cache is missing, or the order is unknown.
    """
    data = dict(config.get("data") or {})
    for key in _REFUSED:
        if data.get(key) is not None:
            raise ConversionError(f"data.{key}: which samples that leaves is not carried over; use --without-data")
    if data.get("stop_strategy", "restart") != "restart":
        raise ConversionError(f"data.stop_strategy: {data['stop_strategy']} is not carried over; restart is")
    new = "components" in data
    datasets = dict(data.get("components") or data.get("configs") or {})
    weights = _stages(data.get("train_weights"), datasets, trainer)
    names = [name for name in datasets if any(stage.get(name, 0) > 0 for _, stage in weights)] or [""]
    for name in names:
        _check_dataset(name, datasets.get(name) or data, new)
    if given and len(given) != len(names):
        raise ConversionError(f"--data names {len(given)} token caches, the run has {len(names)}: {', '.join(names)}")
    places = given or [_place(name, datasets.get(name) or {}, data) for name in names]
    try:
        caches = {name: open_cache(_resolved(place, near)) for name, place in zip(names, places, strict=True)}
    except DataError as error:
        raise ConversionError(f"{error} (hint: --data names its path, --without-data skips it)") from None
    key = threefry.seeded(seed if config.get("data_seed") is None else int(config["data_seed"]))
    order = {
        "key": (key if config.get("data_seed") is not None else threefry.split(key, 4)[0]).tolist(),
        "shuffle": _shuffle(data, new),
        "mixture": _mixture(names, weights, int(data.get("mixture_block_size", _BLOCK))) if datasets else None,
    }
    return Data(caches, order, _eos(data, list(caches.values()), near))


def _stages(
    weights: ForeignValue, datasets: ForeignConfig, trainer: TrainerConfig
) -> list[tuple[int, dict[str, float]]]:
    """Return first sample and weights of each stage. Levanter counts in updates."""
    if isinstance(weights, list):
        batches = trainer.batch_schedule()
        return [
            (batches.first_sample(int(step)), {key: float(weight) for key, weight in held.items()})
            for step, held in weights
        ]
    held = weights if weights else dict.fromkeys(datasets, 1.0)
    return [(0, {str(key): float(weight) for key, weight in held.items()})]


def _mixture(
    names: Sequence[str], stages: Sequence[tuple[int, dict[str, float]]], block: int
) -> dict[str, ForeignValue]:
    if not 0 < block < 1 << 16 or any(start % block for start, _ in stages) or not stages or stages[0][0]:
        raise ConversionError(
            f"data.train_weights: each stage has to begin with a block of {block} sequences, the first of them at 0; "
            f"they begin at {[start for start, _ in stages]}"
        )
    kept = [[start, {name: held[name] for name in names if held.get(name, 0) > 0}] for start, held in stages]
    return {"names": list(names), "stages": kept, "block": block}


def _shuffle(data: ForeignConfig, new: bool) -> dict[str, JsonValue]:
    given = data.get("shuffle", _BLOCKS if new else False)
    kind = data.get("permutation_type") or ("feistel" if new else "linear")
    if isinstance(given, Mapping):
        kind = given.get("perm_type", "feistel")
        shuffle = {"kind": "blocks", **{key: int(given[key]) for key in _BLOCKS}, "permutation": kind}
    elif given is True:
        shuffle = {"kind": "full", "permutation": kind}
    elif given and not new:
        shuffle = {"kind": "eras", "length": int(given), "permutation": kind}
    elif given:
        raise ConversionError(f"data.shuffle: {given!r} is unknown (hint: true, false or blocks)")
    else:
        return {"kind": "none"}
    if kind not in PERMUTATIONS:
        raise ConversionError(f"data.permutation_type: {kind!r} is unknown (hint: {', '.join(PERMUTATIONS)})")
    return shuffle


def _check_dataset(name: str, dataset: ForeignConfig, new: bool) -> None:
    where = f"data.{'components' if new else 'configs'}.{name}" if name else "data"
    kind = dataset.get("format") or {}
    kind = kind.get("type", "text") if isinstance(kind, Mapping) else kind
    if kind != "text" or dataset.get("type", "cached") not in ("cached", "url", "hf") or dataset.get("pack"):
        raise ConversionError(f"{where}: text in a token cache, not packed, is carried over alone; use --without-data")


def _place(name: str, dataset: ForeignConfig, data: ForeignConfig) -> str:
    """Return the folder of a dataset's cache by Levanter's rule."""
    own = dataset.get("cache_dir")
    return str(own) if own else os.path.join(str(data.get("cache_dir") or _CACHE_DIR), name)


def _resolved(place: str, near: Sequence[str]) -> str:
    """Resolve a configured path: a relative one in the first directory that has it."""
    if in_bucket(place):
        return place
    place = os.path.expanduser(place)
    candidates = [os.path.normpath(os.path.join(folder, place)) for folder in near]
    ends = ("", "train")
    return next(
        (
            candidate
            for candidate in candidates
            if any(os.path.exists(os.path.join(candidate, end, INDEX)) for end in ends)
        ),
        place,
    )


def _eos(data: ForeignConfig, caches: Sequence[LevanterCache], near: Sequence[str]) -> int | None:
    """Return the id at which attention is blocked; None if it is not."""
    if data.get("block_cross_document_attention", True) is False or data.get("tokenizer") == "passthrough":
        return None
    folder = os.path.expanduser(str(data.get("tokenizer") or ""))
    for directory in near:
        token = _eos_of(os.path.join(directory, folder))
        if token is not None:
            return token
    ends = {cache.end_token() for cache in caches}
    if len(ends) != 1 or None in ends:
        raise ConversionError(
            f"data.tokenizer: the id that ends documents is unknown without the files of {folder or 'the tokenizer'}, "
            "and the token caches have no common one (hint: name the tokenizer's folder there)"
        )
    return ends.pop()


def _eos_of(folder: str) -> int | None:
    """Return the end-of-text id of the tokenizer in ``folder``, None if there is none."""
    try:
        with open(os.path.join(folder, "tokenizer_config.json"), encoding="utf-8") as file:
            token = json.load(file).get("eos_token")
        with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as file:
            tokenizer = json.load(file)
    except (OSError, ValueError, AttributeError):
        return None
    text = token.get("content") if isinstance(token, dict) else token
    added = {entry["content"]: entry["id"] for entry in tokenizer.get("added_tokens", [])}
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    token_id = added.get(text, vocabulary.get(text) if isinstance(vocabulary, dict) else None)
    return int(token_id) if token_id is not None else None
