"""Import of another trainer's run: its checkpoint, data, and configuration.

The configuration continues the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import jax
import yaml

from midstream_core import records
from midstream_core.attempt.errors import EngineError
from midstream_core.json_types import JsonValue
from midstream_core.records import MANIFEST, Manifest, checkpoint_name, sync_directory, write_bytes
from midstream_engine.checkpoint.array_names import unflatten
from midstream_engine.checkpoint.saving.checkpoint_writer import train_document
from midstream_engine.checkpoint.saving.commit import commit, manifest_text
from midstream_engine.computation.programs import compile_reference_losses
from midstream_engine.computation.setup import prepare
from midstream_engine.config.load import from_mapping
from midstream_engine.config.train import TrainLmConfig
from midstream_engine.data.imported_files import SCHEME
from midstream_engine.data.tokenize.tokenizer import IDS
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_run import ForeignRun, ImportedRunPaths
from midstream_engine.interop.streamed_import import Progress, write_state
from midstream_engine.interop.tokenizer_files import carry

CONFIG = "train.yaml"
_MODEL = "model/"
_ATTEMPT = 1  # the attempt that an imported run appears to have had


@dataclass(frozen=True)
class ImportOptions:
    """Options of an import.

    ``data``: present paths of the datasets; ``without_data``: do not import them.
    """

    data: Sequence[str] = ()
    without_data: bool = False
    reference_losses: bool = (
        True  # measure losses of the next batch, which certify a restore; needs the model in memory
    )


@dataclass(frozen=True)
class ImportResult:
    """The result of an import, with a line for each change."""

    kind: str
    manifest: Manifest
    config: str
    notes: list[str]
    data_digest: str  # of its training data


def import_run(
    adopted: ForeignRun, final: str, options: ImportOptions = ImportOptions(), progress: Progress | None = None
) -> ImportResult:
    """Write the directory ``final`` of an imported run.

    The directory has ``checkpoints/step-N-a000``, ``data/<digest>`` and ``train.yaml``. Until it is complete it has
    another name. A killed import continues. After CheckpointError or OSError what was written stays, so that the import
    can be repeated.

    Raises:
        ConversionError: The source cannot be imported.
        CheckpointError: The checkpoint cannot be written.
        OSError: A file cannot be read or written.
    """
    partial = f"{final}.partial"
    with _locked(partial):
        try:
            made = _import(adopted, partial, final, options, progress)
        except ConversionError:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        if os.path.isdir(final):
            os.rmdir(final)
        os.rename(partial, final)
        sync_directory(os.path.dirname(final))
    return made


def _import(
    adopted: ForeignRun, partial: str, final: str, options: ImportOptions, progress: Progress | None
) -> ImportResult:
    data = os.path.join(partial, "data")
    digest = "" if options.without_data or adopted.data is None else _import_data(adopted.data, data, options.data)
    mapping = {**adopted.mapping, "data": dict(adopted.mapping["data"])}
    notes = list(adopted.notes)
    if not digest:
        notes.append("the data is not imported: name it in data.train_urls; its order is ours from now on")
    elif adopted.kind != "huggingface":  # its text was tokenized here and has URLs
        mapping["data"]["train_urls"] = [f"{SCHEME}{final}/data/{digest}"]
    mapping["trainer"] = {**mapping["trainer"], "load_checkpoint_path": final}
    measured = from_mapping(mapping).config
    if adopted.tokenizer and not mapping["data"]["tokenizer"].startswith(IDS):
        mapping["data"]["tokenizer"] = carry(adopted.tokenizer, data, f"{final}/data")
    elif adopted.tokenizer and not digest:
        notes.append("the tokenizer's files are not imported, because they are imported with the data")
    config = from_mapping(mapping).config
    state = {**adopted.state, "data_digest": digest}
    provenance = {**adopted.provenance, "config": config.resolved()}
    paths = ImportedRunPaths(partial, os.path.basename(final) or "converted")
    target = paths.checkpoint(checkpoint_name(adopted.step, 0))
    os.makedirs(paths.checkpoints, exist_ok=True)
    if os.path.exists(os.path.join(target, MANIFEST)):
        shutil.rmtree(target)
    reference_losses = (
        measure_reference_losses(measured, adopted, partial, digest) if digest and options.reference_losses else None
    )
    if reference_losses is None:
        notes.append("no reference losses were measured: a migration of this checkpoint cannot be certified")
    document = train_document(state, {**provenance, "notes": notes}, reference_losses)
    written = write_state(target, adopted.arrays, document, [adopted.kind, adopted.stamp, _settings(mapping)], progress)
    adopted.verify()
    notes += adopted.remarks()
    text = [f"# Continues a run of {adopted.kind} at step {adopted.step}.", *(f"# {note}" for note in notes)]
    body = yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True)
    write_bytes(os.path.join(partial, CONFIG), ("\n".join(text) + "\n" + body).encode())
    manifest = commit(paths, target, written, step=adopted.step, attempt=0, epoch=1)
    return ImportResult(adopted.kind, manifest, os.path.join(final, CONFIG), notes, digest)


def _settings(mapping: dict[str, JsonValue]) -> str:
    """Return the digest of the settings that determine the arrays.

    A killed import that is started again with other flags reuses no array.
    """
    kept = {name: mapping.get(name) for name in ("model", "optimizer", "trainer")}
    return hashlib.sha256(yaml.safe_dump(kept, sort_keys=True).encode()).hexdigest()


def measure_reference_losses(
    config: TrainLmConfig, adopted: ForeignRun, root: str, digest: str
) -> dict[str, JsonValue]:
    """Measure the reference losses of the imported model on this machine's CPU.

    The sequences are the first of the next batch, as in a run's own checkpoints.
    """
    setup = prepare(config, root, digest, jax.devices("cpu")[:1], step=adopted.step)
    model = {array.name.removeprefix(_MODEL): array for array in adopted.arrays if array.name.startswith(_MODEL)}
    arrays = {name: jax.numpy.asarray(array.value()) for name, array in model.items()}
    adopted.verify()
    batch = setup.batches.batch(adopted.step)
    measured = compile_reference_losses(setup).measure(unflatten(setup.template.model, arrays), batch)
    return measured.to_json()


def _import_data(link: Callable[[str, Sequence[str]], str], directory: str, given: Sequence[str]) -> str:
    """Link the run's data under ``directory``; return its digest."""
    shutil.rmtree(directory, ignore_errors=True)
    try:
        return os.path.basename(link(directory, given))
    except EngineError as error:
        if isinstance(error, ConversionError):
            raise
        raise ConversionError(f"{error} (hint: --data names its path, --without-data skips it)") from None


@contextlib.contextmanager
def _locked(partial: str) -> Iterator[None]:
    """Context manager: one import to a directory at a time."""
    os.makedirs(partial, exist_ok=True)
    descriptor = os.open(f"{partial}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EngineError(f"{partial}: another import is running there") from None
        try:
            yield
        finally:
            if not os.path.isdir(partial):  # complete, or refused: there is nothing to continue
                os.unlink(f"{partial}.lock")
    finally:
        os.close(descriptor)


def place_in_root(made: ImportResult, folder: str, root: str, run_id: str) -> records.RunPaths:
    """Move what ``import_run`` wrote to ``root`` as the run ``run_id``.

    ``root``: that of a host, on the same file system.

    The run appears to have been stopped in its first attempt. Its data is moved to the host's data directory.

    Raises:
        EngineError: The run exists.
    """
    paths = records.RunPaths(root, records.check_run_id(run_id))
    if os.path.exists(paths.fence):
        raise EngineError(f"{paths.dir} exists (hint: choose another --run-id)")
    digests = _move_data(os.path.join(folder, "data"), os.path.join(root, "data"))
    for directory in (paths.checkpoints, paths.pins, paths.attempt(_ATTEMPT).dir):
        os.makedirs(directory, exist_ok=True)
    with open(os.path.join(folder, CONFIG), encoding="utf-8") as file:
        mapping = yaml.safe_load(file)
    mapping["trainer"] = {**mapping["trainer"], "id": run_id, "load_checkpoint_path": None}
    config = from_mapping(mapping).config
    text = yaml.safe_dump(config.resolved(), sort_keys=False, allow_unicode=True)
    write_bytes(paths.config, text.encode())
    step, now, host = made.manifest.step, time.time(), socket.gethostname()
    name = checkpoint_name(step, _ATTEMPT)
    os.rename(os.path.join(folder, "checkpoints", checkpoint_name(step, 0)), paths.checkpoint(name))
    manifest = dataclasses.replace(made.manifest, run_id=run_id, attempt=_ATTEMPT)
    write_bytes(os.path.join(paths.checkpoint(name), MANIFEST), manifest_text(manifest))
    entry = records.LineageEntry(
        _ATTEMPT, 1, made.kind, 0, "", 0, last_step=step, root_digest=made.manifest.root_digest, started=now
    )
    records.Lineage(run_id).with_entry(entry).write(paths.lineage)
    identity = records.this_process()
    status = records.Status(
        state=records.STOPPED, step=step, process=0, heartbeat=now, run_id=run_id, attempt=_ATTEMPT, checkpoint=name,
        root_digest=made.manifest.root_digest, num_train_steps=config.trainer.num_train_steps, host=host, progress=now,
        data_digest=made.data_digest, data_digests=digests, message=f"imported from {made.kind}",
        pid=identity.pid, start_ticks=identity.start_ticks, boot_id=identity.boot_id, machine=identity.machine,
        namespace=identity.namespace,
    )  # fmt: skip
    status.write(paths.attempt(_ATTEMPT).status())
    records.first_fence(host).write(paths.fence)
    return paths


def _move_data(source: str, target: str) -> list[str]:
    names = os.listdir(source) if os.path.isdir(source) else []
    digests = sorted(name for name in names if not name.startswith("."))
    os.makedirs(target, exist_ok=True)
    for digest in digests:
        if not os.path.exists(os.path.join(target, digest)):
            os.rename(os.path.join(source, digest), os.path.join(target, digest))
    return digests
