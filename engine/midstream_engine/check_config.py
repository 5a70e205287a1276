"""Program that checks a configuration.

``python -m midstream_engine.check_config --config_path FILE [--SECTION.KEY VALUE ...]``

No data, accelerator, jax or numpy is needed. The program prints what a run of the configuration reads, as one JSON
object: ``{"event": "config", "tokenizer", "eos_token", "cache_dir", "texts": [{"field", "url", "files", "count"}],
"packages": {NAME: FIELD}}``. ``files`` has the patterns that the braces of ``url`` stand for, at most `MAX_FILES` of
them; ``count`` is their number. ``packages`` are those that not every environment of the engine has.
Exit codes: 0 done, 2 the configuration is wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from midstream_core import records
from midstream_engine.config import ConfigError, DataConfig, TensorboardConfig, TrainLmConfig, WandbConfig, load_config
from midstream_engine.config.data import SourceConfig
from midstream_engine.data.sources.list_sources import expand_braces
from midstream_engine.interruption import interruptible

MAX_FILES = 2000  # of a URL
PARQUET = "pyarrow"
ARCHIVES = "zstandard"
DATASETS = "datasets"
TOKENIZERS = "tokenizers"
TRACKERS = {WandbConfig: "wandb", TensorboardConfig: "tensorboardX"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the configuration; return the exit code."""
    try:
        config = load_config(sys.argv[1:] if arguments is None else list(arguments)).config
        _ = config.data.given_tokenizer
        inputs = inputs_of(config)
    except ConfigError as error:
        print(f"midstream: {' '.join(str(error).split())}", file=sys.stderr)
        return records.EXIT_CONFIG
    print(json.dumps({"event": "config", **inputs}), flush=True)
    return records.EXIT_DONE


def inputs_of(config: TrainLmConfig) -> dict[str, Any]:
    """Return what a run of the configuration reads.

    Raises:
        ConfigError: The configuration names no text.
    """
    data = config.data
    texts = [_text(field, url) for field, url in _urls(data)]
    named = [field for field, dataset in _parts(data) if dataset.id is not None]
    if not named and not any("train_urls" in text["field"] for text in texts):
        raise ConfigError("data.train_urls is empty (hint: name files, or stdlib:**/*.py to try things)")
    packages: dict[str, str] = {}
    for text in texts:
        if text["url"].lower().endswith(".parquet"):
            packages.setdefault(PARQUET, f"{text['field']}: {text['url']}")
        if text["url"].lower().endswith(".zst"):
            packages.setdefault(ARCHIVES, f"{text['field']}: {text['url']}")
    if named:
        packages[DATASETS] = f"{named[0]}id"
    if data.given_tokenizer != "bytes" and not data.given_tokenizer.startswith(("ids:", records.IMPORTED)):
        packages[TOKENIZERS] = f"data.tokenizer: {data.given_tokenizer}"
    for tracker in config.trainer.tracker:
        packages[TRACKERS[type(tracker)]] = "trainer.tracker"
    return {
        "tokenizer": data.given_tokenizer,
        "eos_token": data.eos_token,
        "cache_dir": data.cache_dir,
        "texts": texts,
        "packages": packages,
    }


def _parts(data: DataConfig) -> Iterator[tuple[str, SourceConfig]]:
    """Yield each dataset with the name that precedes its fields.

    Datasets without a weight have no training text.
    """
    if not data.configs:
        yield "data.", data
        return
    weighted = data.block_counts()
    for name, dataset in sorted(data.configs.items()):
        read = dataset if name in weighted else replace(dataset, train_urls=[], id=None, name=None)
        yield f"data.configs.{name}.", read


def _urls(data: DataConfig) -> Iterator[tuple[str, str]]:
    for prefix, dataset in _parts(data):
        for name in ("train_urls", "validation_urls"):
            for url in getattr(dataset, name):
                yield prefix + name, url


def _text(field: str, url: str) -> dict[str, Any]:
    files = [url] if url.startswith(records.IMPORTED) else expand_braces(url)
    return {"field": field, "url": url, "files": files[:MAX_FILES], "count": len(files)}


if __name__ == "__main__":
    sys.exit(interruptible(main))
