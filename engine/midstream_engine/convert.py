"""``python -m midstream_engine.convert SRC DST --from huggingface|midstream --to midstream|huggingface``.

Models in and out, without torch. Exit codes: 0 done, 1 it cannot be done (nothing is left at DST), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import warnings
from collections.abc import Sequence

from midstream_engine import records

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert; returns the exit code. stdout: what was written; stderr: one line about what is wrong."""
    options = _parse(arguments)
    # No accelerator is needed, and one that trains shall not be touched.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "jax.experimental.shard_map is deprecated", DeprecationWarning)
        from midstream_engine.interop import huggingface
    from midstream_engine.checkpoint.errors import CheckpointError
    from midstream_engine.config.errors import ConfigError
    from midstream_engine.errors import EngineError

    final = os.path.abspath(os.path.expanduser(options.dst))
    source = os.path.abspath(os.path.expanduser(options.src))
    partial = f"{final}.partial-{os.getpid()}"
    try:
        if not os.path.isdir(source):
            raise EngineError(f"{source}: no such directory")
        if os.path.lexists(final) and (not os.path.isdir(final) or os.listdir(final)):
            raise EngineError(f"{final} exists already; name another place, or remove it")
        os.makedirs(partial)
        if options.to == "midstream":
            manifest = huggingface.import_model(source, partial, final)
            line = f"{final}: root digest {manifest.root_digest}; start with --config_path {final}/{huggingface.CONFIG}"
        else:
            files = huggingface.export_model(
                source, partial, vocab_size=options.vocab_size, tokenizer=options.tokenizer,
                dtype=options.dtype, largest=options.max_shard_size,
            )  # fmt: skip
            line = f"{final}: {', '.join(files)}"
        if os.path.isdir(final):
            os.rmdir(final)
        os.rename(partial, final)
    except (EngineError, ConfigError, CheckpointError, records.RecordError, OSError) as error:
        print(f"midstream: {' '.join(str(error).split())}", file=sys.stderr)
        return records.EXIT_FAILED
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    print(line)
    return records.EXIT_DONE


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m midstream_engine.convert", description="Convert a model.")
    parser.add_argument("src", metavar="SRC", help="a Hugging Face model directory; or a checkpoint, or its run")
    parser.add_argument("dst", metavar="DST", help="a directory that does not exist yet")
    parser.add_argument("--from", dest="source", choices=("huggingface", "midstream"), required=True)
    parser.add_argument("--to", choices=("midstream", "huggingface"), required=True)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="to huggingface")
    parser.add_argument("--vocab-size", type=int, help="to huggingface: rows to keep; default: the tokenizer's")
    parser.add_argument("--tokenizer", metavar="DIR", help="to huggingface: where the tokenizer's files are")
    parser.add_argument("--max-shard-size", type=_size, default=5 * 10**9, help="to huggingface: a file, as 5GB")
    options = parser.parse_args(arguments)
    if options.source == options.to:
        parser.error(f"--from and --to are both {options.to}: there is nothing to convert")
    return options


def _size(text: str) -> int:
    unit = text[-2:].upper()
    number = text[:-2] if unit in _UNITS else text
    if not number.isdigit() or not int(number):
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 5GB, 500MB or bytes")
    return int(number) * _UNITS.get(unit, 1)


if __name__ == "__main__":
    sys.exit(main())
