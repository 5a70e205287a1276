"""The data of a run: ``data`` of the configuration."""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass, field

from midstream_core.object_store.urls import FORMS
from midstream_engine.config.errors import ConfigError


@dataclass(frozen=True)
class SourceConfig:
    """The source of one dataset.

    A URL is a local path, ``gs://bucket/name``, ``s3://bucket/name``, ``https://host/name``, or ``stdlib:**/*.py``: the
    sources of the running Python's standard library. Braces (``part.{1..8}.jsonl``, ``{a,b}.txt``) work in all of them,
    globs in all but https. ``.jsonl``, ``.ndjson`` and ``.json`` have one document per line (or one list of documents),
    ``.parquet`` one per row, any other file is one document; each may end in ``.gz`` or ``.zst``. Archives and other
    compressions are refused.
    """

    train_urls: list[str] = field(default_factory=list)
    validation_urls: list[str] = field(default_factory=list)
    id: str | None = None  # a Hugging Face dataset with the splits train and validation; needs the package datasets
    name: str | None = None  # configuration of that dataset
    text_key: str = "text"  # the field or column of the text
    max_bytes: int | None = None  # of text, for each of the two sets; None: everything

    def __post_init__(self) -> None:
        if self.max_bytes is not None and self.max_bytes < 1:
            raise ConfigError(f"data.max_bytes: {self.max_bytes} is not positive")
        if self.name is not None and self.id is None:
            raise ConfigError("data.name: names a configuration of the dataset data.id, which is not given")

    @property
    def given(self) -> bool:
        """Whether any text is named."""
        return bool(self.train_urls or self.validation_urls or self.id)


@dataclass(frozen=True)
class DataConfig(SourceConfig):
    """Tokenization and data order of one dataset or of a mixture of ``configs``."""

    # bytes, the path of a Hugging Face tokenizer.json, or ids:SIZE[:EOS] (text that is tokenized). Required to train.
    tokenizer: str | None = None
    eos_token: str = "<|endoftext|>"  # of tokenizer.json; the byte tokenizer uses id 256
    configs: dict[str, SourceConfig] = field(default_factory=dict)  # the datasets of a mixture, by name
    # Share of the sequences; empty: equal shares; 0: validation alone.
    train_weights: dict[str, float] = field(default_factory=dict)
    mixture_block_size: int = 2048  # sequences; every block has each dataset's share exactly
    shuffle: bool = True
    # An example has one token more than model.seq_len, so that the last position has a target, too (NeoX, Megatron).
    next_token: bool = False
    pack: bool = False  # an example has complete documents, padded, instead of a stretch of consecutive tokens
    block_cross_document_attention: bool = True  # no token attends across the end of a document
    ignore_token_id: int | None = None  # a token that is no target, in training and evaluation; negative or None: none
    num_tokenize_workers: int = 0  # processes; 0: one per CPU for much text, else none
    # gs://BUCKET/PREFIX or s3://BUCKET/PREFIX: token caches are read from there and stored there; https://HOST/PATH:
    # read from there. None:
    # they are stored under trainer.root alone.
    cache_dir: str | None = None
    block_cache_bytes: int = 64 << 30  # size limit of the local copy of cache_dir, under trainer.root

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_tokenize_workers < 0:
            raise ConfigError(f"data.num_tokenize_workers: {self.num_tokenize_workers} is negative")
        if self.cache_dir is not None and not re.fullmatch(
            r"((gs|s3)://[^/]{3,}|https?://[^/]+)(/.*)?", self.cache_dir
        ):
            raise ConfigError(f"data.cache_dir: {self.cache_dir!r}: write {FORMS}, or https://HOST/PATH")
        if self.block_cache_bytes < 1:
            raise ConfigError(f"data.block_cache_bytes: {self.block_cache_bytes} is not positive")
        if self.mixture_block_size < 1:
            raise ConfigError(f"data.mixture_block_size: {self.mixture_block_size} is not positive")
        if self.configs and self.given:
            raise ConfigError("data.configs: all text belongs there; remove data.train_urls, validation_urls and id")
        for name in self.train_weights:
            if name not in self.configs:
                near = difflib.get_close_matches(name, self.configs, 1, 0.0)
                raise ConfigError(
                    f"data.train_weights.{name}: data.configs has no such name"
                    + (f"; nearest: {near[0]}" if near else "")
                )
        for name, weight in self.train_weights.items():
            if not (math.isfinite(weight) and weight >= 0):
                raise ConfigError(f"data.train_weights.{name}: {weight} is no share")
        if self.configs:
            self.block_counts()

    @property
    def given_tokenizer(self) -> str:
        """The tokenizer.

        Raises:
            ConfigError: None is given.
        """
        if self.tokenizer is None:
            raise ConfigError(
                "data.tokenizer is not given (hint: the path of a Hugging Face tokenizer.json, for Levanter's default "
                "that of gpt2; or bytes, with one token for each byte)"
            )
        return self.tokenizer

    def warnings(self) -> list[str]:
        """Return lines about valid values that are probably mistakes."""
        return [
            f"data.train_weights: has no weight for {name}: its training text is not used (hint: write 0 if that is "
            "meant)"
            for name, dataset in sorted(self.configs.items())
            if self.train_weights and name not in self.train_weights and (dataset.train_urls or dataset.id)
        ]

    def block_counts(self) -> dict[str, int]:
        """Return the number of sequences of each dataset in a block, sorted by name.

        A block has ``mixture_block_size`` sequences.

        Largest remainder (Hamilton's method), ties to the name that sorts first. Datasets without weight are skipped.

        Raises:
            ConfigError: A weight gives no sequence.
        """
        weights = self.train_weights or dict.fromkeys(self.configs, 1.0)
        total = math.fsum(weights.values())
        if not total > 0:
            raise ConfigError("data.train_weights: no dataset has a weight above 0")
        exact = {name: weights[name] / total * self.mixture_block_size for name in sorted(weights) if weights[name] > 0}
        counts = {name: math.floor(share) for name, share in exact.items()}
        remaining = self.mixture_block_size - sum(counts.values())
        for name in sorted(exact, key=lambda name: (counts[name] - exact[name], name))[:remaining]:
            counts[name] += 1
        for name, count in counts.items():
            if not count:
                raise ConfigError(
                    f"data.train_weights.{name}: {weights[name]:g} of {total:g} gives no sequence in a block of "
                    f"{self.mixture_block_size}; raise data.mixture_block_size"
                )
        return counts
