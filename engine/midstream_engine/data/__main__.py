"""Command line that tokenizes the data of a run.

``python -m midstream_engine.data --config_path FILE [--SECTION.KEY VALUE ...]`` builds the caches that
``midstream_engine.train`` would build, under the same root, without accelerator or jax. One JSON object is printed per
cache. Exit codes: 0 done, 1 failed, 2 the configuration is wrong.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence

from midstream_core import records
from midstream_engine.config import ConfigError, load_config
from midstream_engine.data.batches import TrainingBatches
from midstream_engine.data.errors import DataError
from midstream_engine.data.imported_data import ImportedData
from midstream_engine.data.imported_files import tokenizer_path
from midstream_engine.data.mixture import Mixture
from midstream_engine.data.prepared_data import open_training, open_validation
from midstream_engine.data.token_cache import TokenCache
from midstream_engine.data.tokenize.tokenizer import load_tokenizer
from midstream_engine.interruption import interruptible


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the caches; return the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        config = load_config(arguments).config
        data, root = config.data, config.trainer.resolved_root()
        tokenizer = load_tokenizer(tokenizer_path(data.given_tokenizer, root), data.eos_token)
        training = open_training(root, data, tokenizer, seq_len=config.positions)
        batches = TrainingBatches(training, seq_len=config.positions, batch_size=1, seed=0)
        _print("train", training, sequences=batches.sequences, datasets=batches.sizes())
        validation = open_validation(root, data, tokenizer)
        for name, cache in validation.sets.items() if validation else ():
            _print(f"validation/{name}" if name else "validation", cache)
    except ConfigError as error:
        print(f"midstream: {error}", file=sys.stderr)
        return records.EXIT_CONFIG
    except (DataError, OSError) as error:
        print(f"midstream: {error}", file=sys.stderr)
        return records.EXIT_FAILED
    return records.EXIT_DONE


def _print(name: str, data: TokenCache | Mixture | ImportedData, **more: object) -> None:
    described = {
        "set": name, "digest": data.digest, "tokens": data.tokens, "documents": data.documents,
        "directory": data.directory, **more,
    }  # fmt: skip
    print(json.dumps(described), flush=True)


if __name__ == "__main__":
    sys.exit(interruptible(main))
