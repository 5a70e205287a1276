"""The subject of a comparison: a configuration, or a run of the fleet.

The run has its present speed and price.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from midstream.bundled_files import config_path
from midstream.compare.candidates import price_of_target
from midstream.errors import HostError, MidstreamError, UsageError
from midstream.fleet.fleet import Fleet
from midstream.hosts.host import Host
from midstream.hosts.host_pool import HostPool
from midstream.launch.config_file import config_section, read_config
from midstream.launch.engine_flags import engine_flags
from midstream.migrate import host_files, source_config
from midstream.migrate.checkpoint_store import checkpoint_store_of
from midstream.migrate.journal.json_values import section
from midstream.migrate.planning.foreign_config import foreign_run
from midstream.migrate.planning.import_plan import read_survey
from midstream.migrate.planning.progress import pace_of
from midstream.watch.snapshot import RunView
from midstream.watch.watcher import take_snapshot
from midstream_core import records
from midstream_core.json_types import JsonValue, LoggedRow
from midstream_host.driver.run_file import is_run_file

FLAG = "--data.tokenizer"
VOCAB = "vocab"  # the axis of an array with the tokens of the vocabulary
BY_SIZE = ("bytes", "ids:")  # tokenizers that are no file
MAX_TOKENIZER = 256 << 20  # bytes


@dataclass(frozen=True)
class PresentRun:
    """A run of the fleet, as far as the time and cost of a migration depend on it."""

    run_id: str
    host: str
    target: str  # that its fence names; its host where that is none
    step: int
    steps: int  # of the complete run
    step_seconds: float  # 0: not measured
    price: float | None  # an hour of what it trains on
    checkpoint_bytes: int
    kinds: tuple[str, ...]  # of its devices
    curve: Sequence[LoggedRow] = ()


@dataclass(frozen=True)
class Subject:
    """A configuration to compile, and the run that has it, if there is one."""

    name: str
    config: str  # YAML, without includes
    overrides: tuple[str, ...]
    run: PresentRun | None = None


def of_config(path: str | Path, overrides: Sequence[str]) -> Subject:
    """Return a configuration of this machine.

    Raises:
        UsageError: It cannot be read, or its tokenizer is not on this machine.
    """
    text = read_config(path)
    _refuse_trainer(str(path), yaml.safe_load(text))
    flags = engine_flags(tuple(overrides))
    name = flags.get(FLAG.removeprefix("--"), config_section(text, "data").get("tokenizer"))
    size = None if name is None or _by_size(str(name)) else vocabulary_of_file(str(name), config_path(path))
    more = () if size is None else (FLAG, f"ids:{size}")
    return Subject(str(path), text, (*overrides, *more))


def of_import(fleet: Fleet, source: Host, path: str, config: str, overrides: Sequence[str]) -> Subject:
    """Return the run that an import of another trainer's checkpoint would make.

    Args:
        fleet: The fleet.
        source: The host that has the checkpoint, or imports it from a bucket.
        path: The checkpoint there.
        config: For a checkpoint of Levanter's, the run's YAML on that host; empty: near the checkpoint.
        overrides: Flags of the engine.

    Raises:
        MidstreamError: There is no checkpoint that can be read.
    """
    run = foreign_run(read_survey(fleet, source, path, config), source.name, engine_flags(tuple(overrides)))
    rows = max(length for array in run.arrays for axis, length in zip(array.axes, array.shape, strict=False)
               if axis == VOCAB)  # fmt: skip
    return Subject(f"{source.name}:{path}", yaml.safe_dump(run.config), (*overrides, FLAG, f"ids:{rows}"))


def of_run_named(hosts: HostPool, run_id: str, overrides: Sequence[str]) -> Subject:
    """Return a run of the fleet by its id, from the first copy that is believed.

    Raises as `of_run`.
    """
    copies = take_snapshot(hosts).believed(run_id)
    if not copies:
        raise UsageError(f"no host that answers is believed to have a run {run_id!r}", "midstream --status lists them")
    return of_run(hosts, copies[0], overrides)


def of_run(hosts: HostPool, run: RunView, overrides: Sequence[str]) -> Subject:
    """Return a run of the fleet: its configuration, its progress and its speed.

    Raises:
        MidstreamError: Its configuration cannot be read, or nothing says how large its vocabulary is.
    """
    if run.status is None:
        raise UsageError(f"run {run.run_id} on {run.host} has never started", "compare its config instead")
    source = hosts.get(run.host)
    text, config = source_config.read_config(source, run.run_id)
    _refuse_trainer(run.run_id, config)
    flags = engine_flags(tuple(overrides))
    name = str(flags.get(FLAG.removeprefix("--"), section(config, "data").get("tokenizer")))
    arrays, size = _newest_state(hosts, run)
    more: tuple[str, ...] = ()
    if not _by_size(name):
        sizes = [
            length for array in arrays for axis, length in zip(array.axes, array.shape, strict=False) if axis == VOCAB
        ]
        if not sizes:
            raise MidstreamError(
                f"run {run.run_id} has no checkpoint yet, which has the size of its vocabulary",
                f"-- {FLAG} ids:SIZE gives it",
            )
        more = (FLAG, f"ids:{max(sizes)}")
    owner = run.fence.owner if run.fence is not None else ""
    target = owner if owner in hosts.fleet.target_names else run.host
    kinds = tuple(str(device.get("kind", "")) for device in run.status.devices)
    present = PresentRun(
        run.run_id, run.host, target, run.status.step, run.status.num_train_steps, pace_of(run.curve).step,
        price_of_target(hosts.fleet, target), size or run.status.state_bytes, kinds, run.curve,
    )  # fmt: skip
    return Subject(run.run_id, text, (*overrides, *more), present)


def _refuse_trainer(name: str, config: JsonValue) -> None:
    if isinstance(config, dict) and is_run_file(config):
        raise UsageError(
            f"{name} is of {config['trainer']}: only programs of midstream's engine can be compiled",
            "midstream --migrate RUN --to TARGET --dry-run has the estimate of a migration",
        )


def _newest_state(hosts: HostPool, run: RunView) -> tuple[Sequence[records.ArrayEntry], int]:
    """Return the arrays and bytes of the newest readable checkpoint; empty if none."""
    source = hosts.get(run.host)
    store = checkpoint_store_of(hosts.fleet, source, run.run_id, run.store)
    try:
        manifest = host_files.newest_state(source, store.newest_state(), run)[1]
    except HostError:
        return (), 0
    return (manifest.array_entries, manifest.size) if manifest else ((), 0)


def _by_size(name: str) -> bool:
    return name == BY_SIZE[0] or name.startswith(BY_SIZE[1])


def vocabulary_of_file(name: str, config: Path) -> int:
    """Return the size of the vocabulary of a ``tokenizer.json`` or of its folder.

    The size is one more than the largest id, as in the engine: ids may have gaps.

    Raises:
        UsageError: The file is not on this machine, or is no ``tokenizer.json``.
    """
    path = Path(os.path.expanduser(name))
    path = path / "tokenizer.json" if path.is_dir() else path
    hint = f"-- {FLAG} ids:SIZE gives the size of the vocabulary without it, as ids:50304"
    if not path.is_file():
        raise UsageError(f"{config}: data.tokenizer: {name} is not on this machine", hint)
    try:
        if path.stat().st_size > MAX_TOKENIZER:
            raise ValueError("too large")
        content = cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
        vocabulary: Any = content["model"]["vocab"]
        # Of BPE and WordPiece a mapping to ids, of Unigram a list of (token, score).
        if not isinstance(vocabulary, dict):
            vocabulary = {entry[0]: at for at, entry in enumerate(vocabulary)}
        ids = {str(token): int(number) for token, number in cast("dict[str, int]", vocabulary).items()}
        added = {entry["content"] for entry in content.get("added_tokens") or ()} - ids.keys()
        # Added tokens that the model does not have get the ids from its number of tokens on, whatever the file says.
        return 1 + max([*ids.values(), len(ids) + len(added) - 1])
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        raise UsageError(f"data.tokenizer: {path} is no tokenizer.json", hint) from None
