"""Convert runs and models from and to other formats, without torch.

    python -m midstream_engine.convert SRC DST [--from FORMAT] [--to FORMAT] [-- FLAGS]

The format of SRC is detected. Exit codes: 0 converted, 1 the conversion failed, 2 invalid usage.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence

from midstream_core import records
from midstream_core.attempt.errors import EngineError
from midstream_core.export_formats import DATA_PARALLEL, EXPORT_FORMATS, MODEL_PARALLEL
from midstream_core.object_store.urls import in_bucket
from midstream_engine.interruption import interruptible

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
TRAINER_FILES = ("optimizer.pt", "scheduler.pt", "trainer_state.json")
MAX_RANKS = 1 << 14
_RUNS = ("neox", "levanter", "torch-dcp", "maxtext")
FETCHED = ".source"  # beside DST: the copy of a checkpoint in a bucket, kept until it is converted


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert and return the exit code.

    stdout gets what was written; stderr the progress, a note for each thing that is not converted exactly, and the
    error.
    """
    options = _parse(arguments)
    # Conversion needs no accelerator, and must not allocate memory on one that a run uses. Set before jax is imported,
    # which is why the imports are inside functions.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from midstream_core.attempt.errors import CheckpointError
    from midstream_engine.config.errors import ConfigError

    final = os.path.abspath(os.path.expanduser(options.dst))
    try:
        source = _local(options, final)
        if not os.path.isdir(source):
            raise EngineError(f"{source}: no such directory")
        if os.path.lexists(final) and (not os.path.isdir(final) or os.listdir(final)):
            raise EngineError(f"{final} exists already (hint: name another directory, or remove it)")
        kind = options.source or recognise(source)
        if kind == options.to:
            raise EngineError(f"{source} is {kind} already (hint: --to names the format to convert to)")
        if options.to != "midstream" and kind != "midstream":
            raise EngineError(f"{source} is {kind}: --to {options.to} needs --to midstream first")
        if kind != "neox" and (options.gqa_layout or options.rms_epsilon):
            raise EngineError(f"{source} is {kind}: --gqa-layout and --rms-epsilon go with checkpoints of neox")
        trained = kind == "huggingface" and _of_trainer(source) and not options.without_optimizer
        as_run = kind in _RUNS or trained or (kind == "huggingface" and options.run_id)
        if options.to != "midstream":
            line = _export(source, final, options)
        else:
            line = _run(kind, source, final, options) if as_run else _model(source, final, options)
    except (EngineError, ConfigError, CheckpointError, records.RecordError, OSError) as error:
        print(f"midstream: {' '.join(str(error).split())}", file=sys.stderr)
        return records.EXIT_FAILED
    if in_bucket(options.src):
        shutil.rmtree(final + FETCHED)
    print(line)
    return records.EXIT_DONE


def _of_trainer(source: str) -> bool:
    """Return whether a model directory has a file of transformers' Trainer."""
    return any(os.path.exists(os.path.join(source, name)) for name in TRAINER_FILES)


def _local(options: argparse.Namespace, final: str) -> str:
    """Return the path of SRC.

    A source in a bucket is first copied to a directory beside DST, with its ``--config``.
    """
    if not in_bucket(options.src):
        return os.path.abspath(os.path.expanduser(options.src))
    from midstream_engine.interop.bucket_source import fetch

    if os.path.lexists(final) and (not os.path.isdir(final) or os.listdir(final)):
        raise EngineError(f"{final} exists already (hint: name another directory, or remove it)")
    bar = _Bar()
    source, config = fetch(options.src, final + FETCHED, options.config or "", bar.show)
    bar.close()
    options.config = config or options.config
    return source


def recognise(source: str) -> str:
    """Return the format of the checkpoint in ``source``, a choice of ``--from``.

    Raises:
        ConversionError: The format is unknown.
    """
    from midstream_engine.interop.errors import ConversionError
    from midstream_engine.interop.maxtext import orbax
    from midstream_engine.interop.neox import directory as neox
    from midstream_engine.interop.torch_dcp import reader as torch_dcp

    if neox.is_checkpoint(source):
        return "neox"
    if os.path.exists(os.path.join(source, records.MANIFEST)) and os.path.exists(os.path.join(source, records.TRAIN)):
        return "midstream"
    if os.path.exists(os.path.join(source, "metadata.json")):
        return "levanter"
    if orbax.is_checkpoint(source):
        return "maxtext"
    if torch_dcp.is_checkpoint(source):  # first: torchtitan's configuration has the name of Hugging Face's
        return "torch-dcp"
    if os.path.exists(os.path.join(source, "config.json")):
        return "huggingface"
    names = os.listdir(source)
    if any(os.path.exists(os.path.join(source, name, "metadata.json")) for name in names if name.startswith("step-")):
        return "levanter"
    if "checkpoints" in names or any(records.parse_checkpoint_name(name) for name in names):
        return "midstream"
    raise ConversionError(
        f"{source}: not a checkpoint of GPT-NeoX, Levanter, MaxText, torch (DCP), Hugging Face or midstream "
        "(hint: --from names its format)"
    )


def _run(kind: str, source: str, final: str, options: argparse.Namespace) -> str:
    """Convert a training run with its optimizer; return the line for stdout."""
    with _quiet():
        from midstream_engine.interop import import_run
        from midstream_engine.interop.parameter_cast import with_parameters

        if kind == "neox":
            from midstream_engine.interop.neox.architecture import Choices
            from midstream_engine.interop.neox.importer import open_neox

            adopted = open_neox(source, Choices(options.gqa_layout, options.rms_epsilon))
        elif kind == "huggingface":
            from midstream_engine.interop.huggingface.run_import import open_model
            from midstream_engine.interop.huggingface_trainer.importer import open_trainer

            opened = open_model if options.without_optimizer or not _of_trainer(source) else open_trainer
            adopted = opened(source, options.overrides, options.cast_parameters)
        elif kind == "torch-dcp":
            from midstream_engine.interop.torch_dcp.importer import open_torch_dcp

            adopted = open_torch_dcp(source, options.config)
        elif kind == "maxtext":
            from midstream_engine.interop.maxtext.importer import open_maxtext

            adopted = open_maxtext(source, options.config)
        else:
            from midstream_engine.interop.levanter.importer import open_levanter

            adopted = open_levanter(source, options.config, options.data, without_data=options.without_data)
        if options.cast_parameters:
            adopted = with_parameters(adopted, options.cast_parameters)
        bar = _Bar()
        made = import_run.import_run(
            adopted,
            final,
            import_run.ImportOptions(options.data, options.without_data, not options.without_reference_losses),
            bar.show,
        )
        bar.close()
    _print_notes(made.notes)
    if options.run_id:
        root = os.path.abspath(os.path.expanduser(options.root or os.environ.get("MIDSTREAM_ROOT") or "~/.midstream"))
        paths = import_run.place_in_root(made, final, root, options.run_id)
        shutil.rmtree(final)
        return f"{paths.dir}: step {made.manifest.step}, root digest {made.manifest.root_digest}"
    return (
        f"{final}: step {adopted.step}, root digest {made.manifest.root_digest}; "
        f"continue with --config_path {made.config}"
    )


def _model(source: str, final: str, options: argparse.Namespace) -> str:
    """Import a model without an optimizer; return the line for stdout."""
    with _partial(final) as partial, _quiet():
        from midstream_engine.interop.huggingface import importer

        manifest, notes = importer.import_model(source, partial, final, options.cast_parameters)
    _print_notes(notes)
    return f"{final}: root digest {manifest.root_digest}; start with --config_path {final}/{importer.CONFIG}"


def _export(source: str, final: str, options: argparse.Namespace) -> str:
    """Export a checkpoint of the engine; return the line for stdout."""
    with _partial(final) as partial, _quiet():
        from midstream_engine.interop import exported_run, exporters

        run = exported_run.open_run(source, options.vocab_size, options.tokenizer)
        chosen = exporters.ExportOptions(
            options.dtype,
            options.max_shard_size,
            options.processes,
            options.pipe_parallel_size,
            options.model_parallel_size,
            options.zero_stage,
        )
        written = exporters.exporter_of(options.to).export(run, partial, chosen)
    _print_notes(written.notes)
    return f"{final}: {', '.join(written.files)}"


@contextlib.contextmanager
def _partial(final: str) -> Iterator[str]:
    """Context manager: a directory that is renamed to ``final``, or removed."""
    # Hosts that share the directory may have the same process ids.
    partial = f"{final}.partial-{secrets.token_hex(8)}"
    os.makedirs(partial)
    try:
        yield partial
        if os.path.isdir(final):
            os.rmdir(final)
        os.rename(partial, final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


class _Bar:
    """Progress bar: one overwritten line on a terminal, else a line for each tenth."""

    def __init__(self) -> None:
        self._tenth = 0
        self._terminal = sys.stderr.isatty()

    def show(self, name: str, done: int, total: int) -> None:
        share = done / max(total, 1)
        line = f"{share:4.0%} {done / 1e9:.2f} of {total / 1e9:.2f} GB"
        if self._terminal:
            filled = int(30 * share)
            print(f"\r[{'#' * filled}{'.' * (30 - filled)}] {line} {name[:40]:40}", end="", file=sys.stderr, flush=True)
        elif int(10 * share) > self._tenth:
            self._tenth = int(10 * share)
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._terminal:
            print(file=sys.stderr)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the deprecation warning at the import of haliax."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "jax.experimental.shard_map is deprecated", DeprecationWarning)
        yield


def _count(text: str) -> int:
    count = int(text)
    if not 1 <= count <= MAX_RANKS:
        raise argparse.ArgumentTypeError(f"{count}: expected 1 to {MAX_RANKS}")
    return count


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m midstream_engine.convert", description="Convert a run or a model.")
    parser.add_argument("src", metavar="SRC", help="a checkpoint of GPT-NeoX (or its load: directory), Levanter, "
                        "MaxText, torch (DCP), Hugging Face or midstream; a directory, gs:// or s3://")  # fmt: skip
    parser.add_argument("dst", metavar="DST", help="the directory to create")
    kinds = (*_RUNS, "huggingface", "midstream")
    parser.add_argument("--from", dest="source", choices=kinds, help="format of SRC; default: detected")
    parser.add_argument("--to", choices=("midstream", *EXPORT_FORMATS), default="midstream")
    parser.add_argument("--data", action="append", default=[], metavar="PATH", help="from neox, levanter: the "
                        "present path of a dataset or token cache; once for each, in the run's order")  # fmt: skip
    parser.add_argument("--without-data", action="store_true", help="from neox, levanter: leave the data out")
    parser.add_argument("--without-optimizer", action="store_true", help="from huggingface: import a checkpoint of "
                        "transformers' Trainer as a model at step 0")  # fmt: skip
    parser.add_argument("--without-reference-losses", action="store_true", help="from neox, levanter: do not measure "
                        "the losses of the next batch (needs the model in memory)")  # fmt: skip
    parser.add_argument("--gqa-layout", choices=("interleaved", "blocked"), help="from neox: rows of grouped queries, "
                        "where the checkpoint does not show them; interleaved: NeoX before 2024-11-14")  # fmt: skip
    parser.add_argument("--rms-epsilon", choices=("outside", "inside"), help="from neox: whether RMSNorm adds its "
                        "epsilon outside of the root or inside, where the checkpoint does not show it; outside: NeoX "
                        "before 2025-05-09")  # fmt: skip
    parser.add_argument("--cast-parameters", choices=("bfloat16", "float16", "float32"), help="to midstream: round "
                        "parameters to this type; without it, those that would be rounded are refused")  # fmt: skip
    parser.add_argument("--config", metavar="FILE", help="from levanter: the run's YAML file; from torch-dcp: "
                        "what torchtitan wrote with --debug.save_config_file, or this engine's YAML; from maxtext: "
                        "its log with log_config=true, or a YAML file of its settings")  # fmt: skip
    parser.add_argument("--run-id", metavar="ID", help="install it as this run under --root; it is built in DST. From "
                        "huggingface: with the engine's flags after --, at least the data")  # fmt: skip
    parser.add_argument("--root", metavar="DIR", help="with --run-id: default $MIDSTREAM_ROOT, then ~/.midstream")
    parser.add_argument("--processes", type=_count, default=1, metavar="N", help="to neox, deepspeed: data-parallel "
                        "processes that load it")  # fmt: skip
    parser.add_argument("--pipe-parallel-size", type=int, choices=(0, 1), default=1, help="to neox: 1, with a file for "
                        "each layer, or 0")  # fmt: skip
    parser.add_argument("--model-parallel-size", type=_count, default=1, metavar="N", help="to neox: tensor-parallel "
                        "ranks")  # fmt: skip
    parser.add_argument("--zero-stage", type=int, choices=(0, 1), default=1, help="to neox, deepspeed: 0 for plain "
                        "data parallelism")  # fmt: skip
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="to huggingface")
    parser.add_argument("--vocab-size", type=int, help="to huggingface: rows to keep; default: the tokenizer's")
    parser.add_argument("--tokenizer", metavar="DIR", help="to huggingface: directory of the tokenizer's files")
    parser.add_argument(
        "--max-shard-size", type=_size, default=5 * 10**9, help="to huggingface: of one file, such as 5GB"
    )
    words = list(sys.argv[1:] if arguments is None else arguments)
    cut = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:cut])
    options.overrides = words[cut + 1 :]
    if options.source == options.to:
        parser.error(f"--from and --to are both {options.to}: there is nothing to convert")
    if options.source in _RUNS and options.to != "midstream":
        parser.error(f"--from {options.source} needs --to midstream (hint: convert its result again)")
    if options.processes != 1 and options.to not in DATA_PARALLEL:
        parser.error(f"--processes goes with --to {' and --to '.join(DATA_PARALLEL)}")
    if (options.pipe_parallel_size, options.model_parallel_size) != (1, 1) and options.to not in MODEL_PARALLEL:
        parser.error("--pipe-parallel-size and --model-parallel-size go with --to neox")
    if options.zero_stage != 1 and options.to not in DATA_PARALLEL:
        parser.error(f"--zero-stage goes with --to {' and --to '.join(DATA_PARALLEL)}")
    if options.dtype != "float32" and options.to != "huggingface":
        parser.error("--dtype goes with --to huggingface (hint: a state with its optimizer is float32)")
    if options.cast_parameters and options.to != "midstream":
        parser.error("--cast-parameters goes with --to midstream (hint: --dtype is the type of an export)")
    return options


def _size(text: str) -> int:
    unit = text[-2:].upper()
    number = text[:-2] if unit in _UNITS else text
    if not number.isdecimal() or not int(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size (hint: write 5GB, 500MB or bytes)")
    return int(number) * _UNITS.get(unit, 1)


if __name__ == "__main__":
    sys.exit(interruptible(main))
