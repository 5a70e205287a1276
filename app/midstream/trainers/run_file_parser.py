"""Parser of another trainer's run file: YAML with its defaults, checked by key."""

from __future__ import annotations

import dataclasses
import fnmatch
import shlex
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import yaml

from midstream.errors import MidstreamError, UsageError
from midstream.plain_yaml import load_plain
from midstream.suggestions import nearest
from midstream.trainers import conda_lock, uv_lock
from midstream.trainers.command_problem import DEVICES_OF_HOST, command_problem
from midstream.trainers.environment_files import packages_of
from midstream.trainers.registry import TRAINERS, TrainerDefaults
from midstream_core import records
from midstream_core.json_types import JsonObject, JsonValue, object_or_empty
from midstream_core.visible_devices import VISIBLE
from midstream_host.driver.checkpoints.checkpoint_finder import RULES
from midstream_host.driver.run_file import (
    BATCHES,
    BY_COMMAND,
    BY_DEVICE,
    BY_NODE,
    DISTRIBUTED,
    PLACEHOLDER,
    PLACEHOLDERS,
    BatchDivision,
    Checkpoints,
    Metrics,
    RunFile,
    Stop,
    StoredContents,
    TrainerEnvironment,
    is_run_file,
)

LARGEST = 1 << 20  # bytes of a run file
SOURCES = ("tensorboard", "csv", "trainer_state", "jsonl", "trackio", "wandb", "regex")
PATHS = {  # examples; the other sources need none
    "tensorboard": "{out}/**/events.out.tfevents.*",
    "csv": "{out}/**/metrics.csv",
    "jsonl": "{out}/metrics.jsonl",
    "trackio": "{out}/**/*.db",
    "wandb": "wandb/*run-*/run-*.wandb",
}
KEYS = (
    "trainer", "id", "command", "resume", "directory", "out", "steps", "launcher", "rehearsal_steps", "batch", "stop",
    "checkpoints", "metrics", "files", "environment", "stored", "devices", "processes",
)  # fmt: skip
PROCESSES = (BY_DEVICE, BY_NODE)
_REQUIREMENTS = ("requirements", "lock")  # keys of environment: a file beside the run file
_LOCKED = "conda"  # field of environment that is written from a lock file
Part = TypeVar("Part", bound=records.JsonRecord)


@dataclass(frozen=True)
class ParsedRunFile:
    """A run file with every default, and what it states for its launch alone."""

    run: RunFile
    run_id: str  # ``id:``; empty: none
    path: Path


def read_run_file(path: Path) -> ParsedRunFile:
    """Read and check a run file.

    Raises:
        UsageError: It cannot be read, a key is unknown or missing, or a value is wrong; the message has file and key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not a text file ({error.reason})") from None
    return parse_run_file(text, path)


def names_run_file(path: Path) -> bool:
    """Return whether a file is another trainer's run file: its ``trainer:`` is a word."""
    try:
        return path.stat().st_size <= LARGEST and is_run_file(load_plain(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError, RecursionError):
        return False


def parse_run_file(text: str, path: Path, read: Callable[[str], str] | None = None) -> ParsedRunFile:
    """Parse the text of a run file. Errors as above.

    Args:
        text: The text.
        path: For messages, and for the files that it names.
        read: Reads a file beside it, for the run file of a host: a host never names a file of this machine.
            MidstreamError where it cannot be read.
    """
    try:
        value = load_plain(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise UsageError(f"{path}, line {mark.line + 1 if mark else 1}: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: {' '.join(str(error).split())}") from None
    return _RunFileParser(path, value, read).parse()


class _RunFileParser:
    def __init__(self, path: Path, value: JsonValue, read: Callable[[str], str] | None) -> None:
        self._path, self._read = path, read
        if not isinstance(value, dict):
            raise self._error("", "not a mapping of keys and values", f"keys: {', '.join(KEYS)}")
        self._value = value

    def _error(self, key: str, what: str, hint: str = "") -> UsageError:
        return UsageError(f"{self._path}: {key + ': ' if key else ''}{what}", hint)

    def parse(self) -> ParsedRunFile:
        for key in self._value:
            if key not in KEYS:
                raise self._error(str(key), "no key of a run file", nearest(str(key), KEYS))
        name = self._value.get("trainer")
        if not isinstance(name, str) or name not in TRAINERS:
            raise self._error("trainer", f"{name!r} is no trainer", nearest(str(name), tuple(TRAINERS)))
        defaults = TRAINERS[name]
        command = self._words("command")
        if not command:
            raise self._error("command", "missing", "command: torchrun --nproc_per_node {devices} train.py")
        run = RunFile(
            trainer=name,
            command=command,
            resume=self._resume(command, defaults),
            checkpoints=self._checkpoints(defaults),
            metrics=self._metrics(defaults),
            batch=self._batch(command, defaults),
            stop=self._stop(defaults),
            environment=self._environment(defaults),
            stored=self._part("stored", StoredContents, defaults.stored),
            directory=self._text("directory"),
            out=self._text("out") or "out",
            steps=self._number("steps", 0),
            launcher=self._flag("launcher", True),
            devices=self._number("devices", 0),
            processes=self._text("processes"),
            rehearsal_steps=self._number("rehearsal_steps", 3),
            files=self._texts("files"),
        )
        self._check(run)
        return ParsedRunFile(run, self._text("id"), self._path)

    # ------------------------------------------------------------------------------------------ values

    def _text(self, key: str) -> str:
        value = self._value.get(key, "")
        if not isinstance(value, str):
            raise self._error(key, f"expected a text, found {value!r}")
        return value

    def _texts(self, key: str) -> list[str]:
        value = self._value.get(key, [])
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise self._error(key, "expected a list of texts", f'{key}: ["*.py", "data/**"]')
        return cast("list[str]", value)

    def _number(self, key: str, default: int) -> int:
        value = self._value.get(key, default)
        if type(value) is not int or value < 0:
            raise self._error(key, f"expected a number from 0 on, found {value!r}")
        return value

    def _flag(self, key: str, default: bool) -> bool:
        value = self._value.get(key, default)
        if not isinstance(value, bool):
            raise self._error(key, f"expected true or false, found {value!r}")
        return value

    def _words(self, key: str) -> list[str]:
        value = self._value.get(key)
        if value is None:
            return []
        if isinstance(value, str):
            try:
                return shlex.split(value)
            except ValueError as error:
                raise self._error(key, str(error).lower()) from None
        if isinstance(value, list) and all(isinstance(word, str) for word in value):
            return cast("list[str]", value)
        raise self._error(key, "expected a command line, or a list of its words")

    def _part(self, key: str, kind: type[Part], default: Part, leave: Sequence[str] = ()) -> Part:
        """Return a part of the run file over its default.

        Keys in ``leave`` are read elsewhere.
        """
        value = self._value.get(key, {})
        if not isinstance(value, dict):
            raise self._error(key, "expected keys and values")
        given = {name: item for name, item in value.items() if name not in leave}
        names = [field.name for field in dataclasses.fields(kind) if field.name != _LOCKED]
        for name in given:
            if name not in names:
                raise self._error(f"{key}.{name}", "no key of it", nearest(str(name), (*names, *leave)))
        try:
            return kind.from_json({**default.to_json(), **given}, f"{self._path}: {key}")
        except records.RecordError as error:
            raise UsageError(str(error)) from None

    # ------------------------------------------------------------------------------------------ parts

    def _resume(self, command: list[str], defaults: TrainerDefaults) -> list[str]:
        words = self._words("resume")
        if words:
            return words
        if defaults.resume is None:
            raise self._error(
                "resume", f"missing: a {defaults.title} has its own way to resume", 'resume: "... {checkpoint}"'
            )
        return [*command, *defaults.resume]

    def _checkpoints(self, defaults: TrainerDefaults) -> Checkpoints:
        given = self._value.get("checkpoints")
        if defaults.checkpoints is None and not given:
            raise self._error("checkpoints", "missing", 'checkpoints: {rule: glob, pattern: "ckpt-*.pt"}')
        checkpoints = self._part("checkpoints", Checkpoints, defaults.checkpoints or Checkpoints("glob"))
        if checkpoints.rule not in RULES:
            raise self._error(
                "checkpoints.rule", f"{checkpoints.rule!r} is no rule", nearest(checkpoints.rule, tuple(RULES))
            )
        if checkpoints.rule == "glob" and not checkpoints.pattern:
            raise self._error("checkpoints.pattern", "missing", 'pattern: "ckpt-*.pt"')
        self._check_pattern(
            "checkpoints.pattern", checkpoints.pattern, "checkpoints: {directory: ...} names the directory"
        )
        return checkpoints

    def _metrics(self, defaults: TrainerDefaults) -> Metrics:
        if defaults.metrics is None and "metrics" not in self._value:
            raise self._error("metrics", "missing", "metrics: {source: jsonl, path: out/metrics.jsonl}")
        given = self._value.get("metrics", {})
        default = defaults.metrics or Metrics("")
        source = given.get("source", default.source) if isinstance(given, dict) else ""
        metrics = self._part(
            "metrics", Metrics, default if source == default.source else Metrics("", first_step=default.first_step)
        )
        if metrics.source not in SOURCES:
            raise self._error("metrics.source", f"{metrics.source!r} is no source", nearest(metrics.source, SOURCES))
        if metrics.source == "regex" and "(?P<step>" not in metrics.pattern:
            raise self._error(
                "metrics.pattern",
                "needs a group step, and a group loss",
                r'pattern: "iter (?P<step>\d+): loss (?P<loss>\S+)"',
            )
        hint = f'path: "{PATHS.get(metrics.source, "")}"'
        if metrics.source in PATHS and not metrics.path:
            raise self._error("metrics.path", f"missing for {metrics.source}", hint)
        self._check_pattern("metrics.path", metrics.path.removeprefix("{out}/").lstrip("/"), hint)
        return metrics

    def _check_pattern(self, key: str, pattern: str, hint: str) -> None:
        """Check that a pattern can match: a path below a directory."""
        if pattern and (PLACEHOLDER.search(pattern) or any(word in ("", ".", "..") for word in pattern.split("/"))):
            raise self._error(key, f"{pattern!r} is not a path below the directory that is searched", hint)

    def _batch(self, command: list[str], defaults: TrainerDefaults) -> BatchDivision:
        divides = any("{accumulation}" in word or "{per_device}" in word for word in command)
        default = dataclasses.replace(defaults.batch, kept_by=BY_COMMAND) if divides else defaults.batch
        batch = self._part("batch", BatchDivision, default)
        if batch.kept_by not in BATCHES:
            raise self._error("batch.kept_by", f"{batch.kept_by!r} is none", nearest(batch.kept_by, BATCHES))
        if batch.kept_by == BY_COMMAND and not batch.sequences:
            raise self._error(
                "batch.sequences",
                "missing: {per_device} and {accumulation} are computed from it",
                "batch: {sequences: 64}",
            )
        return batch

    def _stop(self, defaults: TrainerDefaults) -> Stop:
        stop = self._part("stop", Stop, defaults.stop)
        names = tuple(Signal.name for Signal in signal.Signals)
        if stop.signal not in names:
            raise self._error("stop.signal", f"{stop.signal!r} is no signal", nearest(stop.signal, names))
        return stop

    def _environment(self, defaults: TrainerDefaults) -> TrainerEnvironment:
        value = self._value.get("environment", {})
        given = object_or_empty(value)
        environment = self._part(
            "environment", TrainerEnvironment, TrainerEnvironment(packages=list(defaults.packages)), _REQUIREMENTS
        )
        named = [key for key in _REQUIREMENTS if key in given]
        if not named:
            return environment
        if environment.python or len(named) > 1:
            raise self._error("environment", "python, requirements and lock exclude each other")
        name, key = str(given[named[0]]), f"environment.{named[0]}"
        read = partial(self._file_beside, key=key)
        try:
            return dataclasses.replace(environment, **packages_of(self._path.parent / name, name, read))
        except UsageError as error:
            if error.message.startswith(f"{self._path}: "):  # of `_file_beside`
                raise
            raise self._error(key, error.message, error.hint) from None

    def _file_beside(self, name: str, key: str) -> str:
        """Return the text of a file beside the run file, here or on the run file's host."""
        if self._read is None:
            file = self._path.parent / name
            try:
                return file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise self._error(key, f"{file}: {error}") from None
        if name.startswith(("/", "~")) or ".." in name.split("/") or not name.isprintable():
            raise self._error(key, f"{name[:100]!r} is not below the directory of the run file")
        if Path(name).name == uv_lock.NAME:
            raise self._error(
                key, f"{name} is read on this machine alone", "uv export --frozen --no-emit-project -o requirements.txt"
            )
        try:
            return self._read(name)
        except MidstreamError as error:
            raise self._error(key, error.message, error.hint) from None

    # ------------------------------------------------------------------------------------------ checks

    def _check(self, run: RunFile) -> None:
        """Check what the parts say together. UsageError."""
        for key in ("command", "resume"):
            for word in getattr(run, key):
                for name in PLACEHOLDER.findall(word):
                    near = nearest(name, PLACEHOLDERS)
                    if name not in PLACEHOLDERS and near.startswith("did you mean"):
                        raise self._error(key, f"{{{name}}} is no placeholder", near)
            wrong = command_problem(getattr(run, key))
            if wrong is not None:
                raise self._error(key, wrong.what, wrong.hint)
        if any("{checkpoint}" in word for word in run.command):
            raise self._error("command", "{checkpoint} belongs to resume: a new run has none")
        for name in run.environment.variables:
            if name in DISTRIBUTED:
                raise self._error(f"environment.variables.{name}", "midstream writes it", "remove it")
            if name == VISIBLE:
                raise self._error(f"environment.variables.{name}", "each host has its own", DEVICES_OF_HOST)
        if run.processes and (run.processes not in PROCESSES or (run.processes == BY_NODE and not run.launcher)):
            hint = nearest(run.processes, PROCESSES) if run.launcher else "launcher: false starts one for each device"
            raise self._error("processes", f"{run.processes!r} is neither device nor node", hint)
        for pattern in run.files:
            if pattern.startswith(("/", "~")) or ".." in pattern.split("/"):
                raise self._error("files", f"{pattern!r} is not below the directory of the run file")
        if run.directory and not run.directory.startswith("/"):
            raise self._error("directory", f"{run.directory!r} is not absolute", "leave it out: midstream makes one")
        if run.files and run.out and any(fnmatch.fnmatch(run.out, pattern) for pattern in run.files if pattern != "**"):
            raise self._error("files", f"{run.out!r} is where the trainer writes: it does not travel as a file")


def as_text(run: RunFile) -> str:
    """Return the text of a resolved run file as ``run.yaml`` on hosts: JSON, as YAML."""
    import json

    return json.dumps(run.to_json(), indent=1, ensure_ascii=False) + "\n"


def from_value(value: JsonObject, where: str) -> RunFile:
    """Decode a resolved run file that a host or a plan has.

    Raises:
        RecordError: A field is missing or has another type, or it fixes what midstream writes.
    """
    run = RunFile.from_json(dict(value), where)
    if run.trainer not in TRAINERS:
        raise records.RecordError(f"{where}: trainer: {run.trainer[:60]!r} is none of this midstream")
    try:
        conda_lock.by_platform(run.environment.conda)
    except UsageError as error:
        raise records.RecordError(f"{where}: environment.conda: {error.message}") from None
    return run
