"""Make a run of ours of a run from elsewhere: its checkpoint, its data, and the configuration that continues it."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from midstream_engine import records
from midstream_engine.checkpoint.saving.save import commit, manifest_text, train_document
from midstream_engine.config.load import from_mapping
from midstream_engine.config.train import TrainLmConfig
from midstream_engine.data.imported.imported_data import SCHEME
from midstream_engine.data.tokenize.tokenizer import IDS
from midstream_engine.errors import EngineError
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_run import ForeignRun
from midstream_engine.interop.streamed_import import Progress, write_state
from midstream_engine.interop.tokenizer_files import carry
from midstream_engine.records import MANIFEST, Manifest, RunPaths, checkpoint_name, sync_directory, write_bytes

CONFIG = "train.yaml"
_MODEL = "model/"
_ATTEMPT = 1  # what an imported run is as if it had been


@dataclass(frozen=True)
class Wishes:
    """``data``: where the datasets lie now, in place of what the source says; ``without_data``: leave them out."""

    data: Sequence[str] = ()
    without_data: bool = False
    reference_losses: bool = (
        True  # measure losses of the next batch, by which a restore proves itself; needs the model in memory
    )


@dataclass(frozen=True)
class Made:
    """What was written, and a line for all that is not carried over as it was."""

    kind: str
    manifest: Manifest
    config: str
    notes: list[str]
    data_digest: str  # of what it trains on


@dataclass(frozen=True)
class _Folder(RunPaths):
    """A run's layout without a root above it."""

    @property
    def dir(self) -> str:
        return self.root


def import_run(adopted: ForeignRun, final: str, wishes: Wishes = Wishes(), progress: Progress | None = None) -> Made:
    """Write the directory ``final``: ``checkpoints/step-N-a000``, ``data/<digest>`` and ``train.yaml``. It is built
    beside its place and renamed into it; a killed import is gone on with where it was.

    Raises ConversionError, CheckpointError and OSError; what was written stays for another try, except where the source
    is at fault.
    """
    partial = f"{final}.partial"
    with _alone(partial):
        try:
            made = _import(adopted, partial, final, wishes, progress)
        except ConversionError:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        if os.path.isdir(final):
            os.rmdir(final)
        os.rename(partial, final)
        sync_directory(os.path.dirname(final))
    return made


def _import(adopted: ForeignRun, partial: str, final: str, wishes: Wishes, progress: Progress | None) -> Made:
    data = os.path.join(partial, "data")
    digest = "" if wishes.without_data or adopted.data is None else _import_data(adopted.data, data, wishes.data)
    mapping = {**adopted.mapping, "data": dict(adopted.mapping["data"])}
    notes = list(adopted.notes)
    if not digest:
        notes.append("the data is left out: name it in data.train_urls; its order is ours from here on")
    elif adopted.kind != "huggingface":  # whose text was tokenized here, and keeps its urls
        mapping["data"]["train_urls"] = [f"{SCHEME}{final}/data/{digest}"]
    mapping["trainer"] = {**mapping["trainer"], "load_checkpoint_path": final}
    measured = from_mapping(mapping).config
    if adopted.tokenizer and not mapping["data"]["tokenizer"].startswith(IDS):
        mapping["data"]["tokenizer"] = carry(adopted.tokenizer, data, f"{final}/data")
    elif adopted.tokenizer and not digest:
        notes.append("the tokenizer's files stay where they are: there is no data that they could come along with")
    config = from_mapping(mapping).config
    state = {**adopted.state, "data_digest": digest}
    provenance = {**adopted.provenance, "config": config.resolved()}
    paths = _Folder(partial, os.path.basename(final) or "converted")
    target = paths.checkpoint(checkpoint_name(adopted.step, 0))
    os.makedirs(paths.checkpoints, exist_ok=True)
    if os.path.exists(os.path.join(target, MANIFEST)):
        shutil.rmtree(target)
    reference_losses = (
        measure_reference_losses(measured, adopted, partial, digest) if digest and wishes.reference_losses else None
    )
    if reference_losses is None:
        notes.append("no witness was measured: a migration of this checkpoint cannot be certified")
    document = train_document(state, {**provenance, "notes": notes}, reference_losses)
    written = write_state(target, adopted.arrays, document, [adopted.kind, adopted.stamp], progress)
    adopted.verify()
    notes += adopted.remarks()
    text = [f"# Goes on with a run of {adopted.kind}'s at step {adopted.step}.", *(f"# {note}" for note in notes)]
    body = yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True)
    write_bytes(os.path.join(partial, CONFIG), ("\n".join(text) + "\n" + body).encode())
    manifest = commit(paths, target, written, step=adopted.step, attempt=0, epoch=1)
    return Made(adopted.kind, manifest, os.path.join(final, CONFIG), notes, digest)


def measure_reference_losses(config: TrainLmConfig, adopted: ForeignRun, root: str, digest: str) -> dict[str, Any]:
    """The losses of the next batch's first sequences under the imported model, on this machine's CPU, as a run records
    them with each of its own checkpoints."""
    import jax

    from midstream_engine.checkpoint.format.array_names import unflatten
    from midstream_engine.trainer.attempt.setup import prepare
    from midstream_engine.trainer.runtime.programs import compile_reference_losses

    setup = prepare(config, root, digest, jax.devices("cpu")[:1], step=adopted.step)
    model = {array.name.removeprefix(_MODEL): array for array in adopted.arrays if array.name.startswith(_MODEL)}
    arrays = {name: jax.numpy.asarray(array.value()) for name, array in model.items()}
    adopted.verify()
    batch = setup.batches.batch(adopted.step)
    measured = compile_reference_losses(setup).measure(unflatten(setup.template.model, arrays), batch)
    return measured.to_json()


def _import_data(bring: Callable[[str, Sequence[str]], str], place: str, given: Sequence[str]) -> str:
    """The digest of the run's data, which is linked under ``place``."""
    shutil.rmtree(place, ignore_errors=True)
    try:
        return os.path.basename(bring(place, given))
    except EngineError as error:
        if isinstance(error, ConversionError):
            raise
        raise ConversionError(f"{error}; --data names another place, --without-data leaves it out") from None


@contextlib.contextmanager
def _alone(partial: str) -> Iterator[None]:
    """One import to a place at a time."""
    os.makedirs(partial, exist_ok=True)
    descriptor = os.open(f"{partial}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EngineError(f"{partial}: another import is under way there") from None
        yield
        os.unlink(f"{partial}.lock")
    finally:
        os.close(descriptor)


def place_in_root(made: Made, folder: str, root: str, run_id: str) -> records.RunPaths:
    """Make the run ``run_id`` under a host's ``root`` of the directory that ``import_run`` wrote on the same file
    system: it looks like a run whose first attempt was stopped. Its data goes beside that of the other runs.

    Raises EngineError where there is such a run already.
    """
    paths = records.RunPaths(root, records.check_run_id(run_id))
    if os.path.exists(paths.fence):
        raise EngineError(f"{paths.dir} exists already: choose another --run-id")
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
    status = records.Status(
        state=records.STOPPED, step=step, process=0, heartbeat=now, run_id=run_id, attempt=_ATTEMPT, checkpoint=name,
        root_digest=made.manifest.root_digest, num_train_steps=config.trainer.num_train_steps, host=host, progress=now,
        data_digest=made.data_digest, data_digests=digests, message=f"imported from {made.kind}",
        **records.this_process().to_json(),
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
