"""What a Levanter configuration says about its data: which token caches, in which order.

Two generations of configurations are read: those with ``components``, and those of Levanter 1.2 with ``configs`` or
with one dataset's fields at the top. They have other defaults: the first shuffles in blocks and always mixes, the
second does not shuffle, and does not mix what is one dataset.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from midstream_engine.config.trainer import TrainerConfig
from midstream_engine.data.errors import DataError
from midstream_engine.data.imported.levanter_cache import LEDGER, Cache, in_bucket, open_cache
from midstream_engine.data.imported.levanter_order import PERMUTATIONS
from midstream_engine.data.order import threefry
from midstream_engine.interop.errors import ConversionError

# What Levanter's code takes where a file says nothing.
_CACHE_DIR, _BLOCK = "cache/", 2048
_BLOCKS = {"io_block_size": 256, "window_blocks": 512}
_REFUSED = ("experiment_budget", "target_budget", "max_train_batches", "num_validation_sequences")
# Of the data: what has been used when this is done, or does not matter to a cache that is built.
USED = {
    "components", "configs", "cache_dir", "cache_options", "enforce_eos", "auto_build_caches", "shuffle", "train_urls",
    "permutation_type", "train_weights", "stop_strategy", "mixture_block_size", "vocab_size", "format", "id", "name",
    "stream", "tags", "plaintext", "text_key", "chat_template", "splits", "shuffle_before_trainval_split", "revision",
}  # fmt: skip


@dataclass(frozen=True)
class Data:
    """``order``: as :mod:`midstream_engine.data.imported.levanter_order` reads it. ``eos``: the id that documents end
    with."""

    caches: dict[str, Cache]
    order: dict[str, Any]
    eos: int | None


def names_data(found: Mapping[str, Any]) -> bool:
    """Whether a configuration says what it reads."""
    data = found.get("data") or {}
    return any(data.get(key) for key in ("components", "configs", "train_urls", "cache_dir", "id"))


def read_data(
    found: Mapping[str, Any], near: Sequence[str], given: Sequence[str], trainer: TrainerConfig, seed: int
) -> Data:
    """The data of the configuration ``found``. ``near``: directories from which its relative paths may be meant;
    ``given``: where the caches lie now, in place of what it says. ConversionError where a cache is missing or the order
    is one that is not known."""
    data = dict(found.get("data") or {})
    for key in _REFUSED:
        if data.get(key) is not None:
            raise ConversionError(f"data.{key}: which samples that leaves is not carried over; use --without-data")
    if data.get("stop_strategy", "restart") != "restart":
        raise ConversionError(f"data.stop_strategy: {data['stop_strategy']} is not carried over; restart is")
    new = "components" in data
    bodies = dict(data.get("components") or data.get("configs") or {})
    weights = _stages(data.get("train_weights"), bodies, trainer)
    names = [name for name in bodies if any(stage.get(name, 0) > 0 for _, stage in weights)] or [""]
    for name in names:
        _check_body(name, bodies.get(name) or data, new)
    if given and len(given) != len(names):
        raise ConversionError(f"--data names {len(given)} token caches, the run has {len(names)}: {', '.join(names)}")
    places = given or [_place(name, bodies.get(name) or {}, data) for name in names]
    try:
        caches = {name: open_cache(_lying(place, near)) for name, place in zip(names, places, strict=True)}
    except DataError as error:
        raise ConversionError(f"{error}; --data names another place, --without-data leaves it out") from None
    key = threefry.seeded(seed if found.get("data_seed") is None else int(found["data_seed"]))
    order = {
        "key": (key if found.get("data_seed") is not None else threefry.split(key, 4)[0]).tolist(),
        "shuffle": _shuffle(data, new),
        "mixture": _mixture(names, weights, int(data.get("mixture_block_size", _BLOCK))) if bodies else None,
    }
    return Data(caches, order, _eos(data, list(caches.values()), near))


def _stages(weights: Any, bodies: Mapping[str, Any], trainer: TrainerConfig) -> list[tuple[int, dict[str, float]]]:
    """First sample and weights of each stage. Levanter counts in updates."""
    if isinstance(weights, list):
        batches = trainer.batch_schedule()
        return [
            (batches.first_sample(int(step)), {key: float(one) for key, one in held.items()}) for step, held in weights
        ]
    held = weights if weights else dict.fromkeys(bodies, 1.0)
    return [(0, {str(key): float(one) for key, one in held.items()})]


def _mixture(names: Sequence[str], stages: Sequence[tuple[int, dict[str, float]]], block: int) -> dict[str, Any]:
    if not 0 < block < 1 << 16 or any(start % block for start, _ in stages) or not stages or stages[0][0]:
        raise ConversionError(
            f"data.train_weights: each stage has to begin with a block of {block} sequences, the first of them at 0; "
            f"they begin at {[start for start, _ in stages]}"
        )
    kept = [[start, {name: held[name] for name in names if held.get(name, 0) > 0}] for start, held in stages]
    return {"names": list(names), "stages": kept, "block": block}


def _shuffle(data: Mapping[str, Any], new: bool) -> dict[str, Any]:
    told = data.get("shuffle", _BLOCKS if new else False)
    kind = data.get("permutation_type") or ("feistel" if new else "linear")
    if isinstance(told, Mapping):
        kind = told.get("perm_type", "feistel")
        shuffle = {"kind": "blocks", **{key: int(told[key]) for key in _BLOCKS}, "permutation": kind}
    elif told is True:
        shuffle = {"kind": "full", "permutation": kind}
    elif told and not new:
        shuffle = {"kind": "eras", "length": int(told), "permutation": kind}
    elif told:
        raise ConversionError(f"data.shuffle: {told!r} is not known: true, false and blocks are")
    else:
        return {"kind": "none"}
    if kind not in PERMUTATIONS:
        raise ConversionError(f"data.permutation_type: {kind!r} is not known: {', '.join(PERMUTATIONS)} are")
    return shuffle


def _check_body(name: str, body: Mapping[str, Any], new: bool) -> None:
    where = f"data.{'components' if new else 'configs'}.{name}" if name else "data"
    kind = body.get("format") or {}
    kind = kind.get("type", "text") if isinstance(kind, Mapping) else kind
    if kind != "text" or body.get("type", "cached") not in ("cached", "url", "hf") or body.get("pack"):
        raise ConversionError(f"{where}: text in a token cache, not packed, is carried over alone; use --without-data")


def _place(name: str, body: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """The folder of a body's cache, as Levanter puts it together."""
    own = body.get("cache_dir")
    return str(own) if own else os.path.join(str(data.get("cache_dir") or _CACHE_DIR), name)


def _lying(place: str, near: Sequence[str]) -> str:
    """Where a path of the configuration lies: relative ones from the first directory that has it."""
    if in_bucket(place):
        return place
    place = os.path.expanduser(place)
    candidates = [os.path.normpath(os.path.join(one, place)) for one in near]
    ends = ("", "train")
    return next(
        (one for one in candidates if any(os.path.exists(os.path.join(one, end, LEDGER)) for end in ends)), place
    )


def _eos(data: Mapping[str, Any], caches: Sequence[Cache], near: Sequence[str]) -> int | None:
    """The id at which attention is blocked; None where it passes."""
    if data.get("block_cross_document_attention", True) is False or data.get("tokenizer") == "passthrough":
        return None
    folder = os.path.expanduser(str(data.get("tokenizer") or ""))
    for one in near:
        found = _eos_of(os.path.join(one, folder))
        if found is not None:
            return found
    ends = {cache.end_token() for cache in caches}
    if len(ends) != 1 or None in ends:
        raise ConversionError(
            f"data.tokenizer: which id ends documents is not known without the files of {folder or 'the tokenizer'}, "
            "and the token caches do not tell; name its folder there"
        )
    return ends.pop()


def _eos_of(folder: str) -> int | None:
    """The end of text of the tokenizer in ``folder``; None where there is none."""
    try:
        with open(os.path.join(folder, "tokenizer_config.json"), encoding="utf-8") as file:
            token = json.load(file).get("eos_token")
        with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as file:
            tokenizer = json.load(file)
    except (OSError, ValueError, AttributeError):
        return None
    text = token.get("content") if isinstance(token, dict) else token
    added = {one["content"]: one["id"] for one in tokenizer.get("added_tokens", [])}
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    found = added.get(text, vocabulary.get(text) if isinstance(vocabulary, dict) else None)
    return int(found) if found is not None else None
