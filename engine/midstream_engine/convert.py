"""``python -m midstream_engine.convert SRC DST [--from neox|levanter|huggingface|midstream] [--to ...] [-- FLAGS]``.

Runs and models in and out, without torch. What SRC is, is recognised. Exit codes: 0 done, 1 it cannot be done, 2 wrong
usage.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence

from midstream_engine import records

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
_RUNS = ("neox", "levanter")


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert; returns the exit code. stdout: what was written; stderr: how far it is, a line for what is not carried
    over as it was, and one about what is wrong."""
    options = _parse(arguments)
    # No accelerator is needed, and one that trains shall not be touched.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from midstream_engine.checkpoint.errors import CheckpointError
    from midstream_engine.config.errors import ConfigError
    from midstream_engine.errors import EngineError

    final = os.path.abspath(os.path.expanduser(options.dst))
    source = os.path.abspath(os.path.expanduser(options.src))
    try:
        if not os.path.isdir(source):
            raise EngineError(f"{source}: no such directory")
        if os.path.lexists(final) and (not os.path.isdir(final) or os.listdir(final)):
            raise EngineError(f"{final} exists already; name another place, or remove it")
        kind = options.source or recognise(source)
        if kind == options.to:
            raise EngineError(f"{source} is {kind} already: --to names what it shall become")
        as_run = kind in _RUNS or (kind == "huggingface" and options.run_id)
        line = _run(kind, source, final, options) if as_run else _model(kind, source, final, options)
    except (EngineError, ConfigError, CheckpointError, records.RecordError, OSError) as error:
        print(f"midstream: {' '.join(str(error).split())}", file=sys.stderr)
        return records.EXIT_FAILED
    print(line)
    return records.EXIT_DONE


def recognise(source: str) -> str:
    """What kind of checkpoint lies there. Raises ConversionError where it is none that is known."""
    from midstream_engine.interop.errors import ConversionError
    from midstream_engine.interop.neox import directory as neox

    if neox.is_checkpoint(source):
        return "neox"
    if os.path.exists(os.path.join(source, records.MANIFEST)) and os.path.exists(os.path.join(source, records.TRAIN)):
        return "midstream"
    if os.path.exists(os.path.join(source, "metadata.json")):
        return "levanter"
    if os.path.exists(os.path.join(source, "config.json")):
        return "huggingface"
    names = os.listdir(source)
    if any(os.path.exists(os.path.join(source, name, "metadata.json")) for name in names if name.startswith("step-")):
        return "levanter"
    if "checkpoints" in names or any(records.parse_checkpoint_name(name) for name in names):
        return "midstream"
    raise ConversionError(
        f"{source}: no checkpoint that is known (GPT-NeoX, Levanter, Hugging Face, midstream); --from says which it is"
    )


def _run(kind: str, source: str, final: str, options: argparse.Namespace) -> str:
    """A training run with its optimizer."""
    with _quiet():
        from midstream_engine.interop import import_run

        if kind == "neox":
            from midstream_engine.interop.neox.importer import open_neox

            adopted = open_neox(source)
        elif kind == "huggingface":
            from midstream_engine.interop.huggingface.run_import import open_model

            adopted = open_model(source, options.overrides)
        else:
            from midstream_engine.interop.levanter.importer import open_levanter

            adopted = open_levanter(source, options.config, options.data, without_data=options.without_data)
        bar = _Bar()
        made = import_run.import_run(
            adopted, final, import_run.Wishes(options.data, options.without_data, not options.without_witness), bar.show
        )
        bar.close()
    for note in made.notes:
        print(f"note: {note}", file=sys.stderr)
    if options.run_id:
        root = os.path.abspath(os.path.expanduser(options.root or os.environ.get("MIDSTREAM_ROOT") or "~/.midstream"))
        paths = import_run.place_in_root(made, final, root, options.run_id)
        shutil.rmtree(final)
        return f"{paths.dir}: step {made.manifest.step}, root digest {made.manifest.root_digest}"
    return (
        f"{final}: step {adopted.step}, root digest {made.manifest.root_digest}; go on with --config_path {made.config}"
    )


def _model(kind: str, source: str, final: str, options: argparse.Namespace) -> str:
    """A model alone."""
    partial = f"{final}.partial-{os.getpid()}"
    try:
        os.makedirs(partial)
        with _quiet():
            from midstream_engine.interop.huggingface import importer
        if kind == "huggingface":
            manifest = importer.import_model(source, partial, final)
            line = f"{final}: root digest {manifest.root_digest}; start with --config_path {final}/{importer.CONFIG}"
        else:
            files = importer.export_model(
                source, partial, vocab_size=options.vocab_size, tokenizer=options.tokenizer,
                dtype=options.dtype, largest=options.max_shard_size,
            )  # fmt: skip
            line = f"{final}: {', '.join(files)}"
        if os.path.isdir(final):
            os.rmdir(final)
        os.rename(partial, final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return line


class _Bar:
    """How far it is: one line that is written over on a terminal, else a line each tenth."""

    def __init__(self) -> None:
        self._tenth = 0
        self._terminal = sys.stderr.isatty()

    def show(self, name: str, done: int, total: int) -> None:
        part = done / max(total, 1)
        line = f"{part:4.0%} {done / 1e9:.2f} of {total / 1e9:.2f} GB"
        if self._terminal:
            filled = int(30 * part)
            print(f"\r[{'#' * filled}{'.' * (30 - filled)}] {line} {name[:40]:40}", end="", file=sys.stderr, flush=True)
        elif int(10 * part) > self._tenth:
            self._tenth = int(10 * part)
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._terminal:
            print(file=sys.stderr)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the warning that importing haliax gives."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "jax.experimental.shard_map is deprecated", DeprecationWarning)
        yield


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m midstream_engine.convert", description="Convert a run or a model.")
    parser.add_argument("src", metavar="SRC", help="a checkpoint of GPT-NeoX (or its load: directory), Levanter, "
                        "Hugging Face or midstream")  # fmt: skip
    parser.add_argument("dst", metavar="DST", help="a directory that does not exist yet")
    kinds = ("neox", "levanter", "huggingface", "midstream")
    parser.add_argument("--from", dest="source", choices=kinds, help="what SRC is; default: recognised")
    parser.add_argument("--to", choices=("midstream", "huggingface"), default="midstream")
    parser.add_argument("--data", action="append", default=[], metavar="PATH", help="from neox, levanter: where a "
                        "dataset or token cache lies now; once for each, in the run's order")  # fmt: skip
    parser.add_argument("--without-data", action="store_true", help="from neox, levanter: leave the data out")
    parser.add_argument("--without-witness", action="store_true", help="from neox, levanter: do not measure the losses "
                        "of the next batch (needs the model in memory)")  # fmt: skip
    parser.add_argument("--config", metavar="FILE", help="from levanter: the run's YAML file")
    parser.add_argument("--run-id", metavar="ID", help="make it this run under --root; DST is where it is built. From "
                        "huggingface: with the engine's flags after --, which name the data at least")  # fmt: skip
    parser.add_argument("--root", metavar="DIR", help="with --run-id: default $MIDSTREAM_ROOT, then ~/.midstream")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="to huggingface")
    parser.add_argument("--vocab-size", type=int, help="to huggingface: rows to keep; default: the tokenizer's")
    parser.add_argument("--tokenizer", metavar="DIR", help="to huggingface: where the tokenizer's files are")
    parser.add_argument("--max-shard-size", type=_size, default=5 * 10**9, help="to huggingface: a file, as 5GB")
    words = list(sys.argv[1:] if arguments is None else arguments)
    cut = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:cut])
    options.overrides = words[cut + 1 :]
    if options.source == options.to:
        parser.error(f"--from and --to are both {options.to}: there is nothing to convert")
    if options.source in _RUNS and options.to != "midstream":
        parser.error(f"--from {options.source} goes --to midstream; convert that again")
    return options


def _size(text: str) -> int:
    unit = text[-2:].upper()
    number = text[:-2] if unit in _UNITS else text
    if not number.isdigit() or not int(number):
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 5GB, 500MB or bytes")
    return int(number) * _UNITS.get(unit, 1)


if __name__ == "__main__":
    sys.exit(main())
