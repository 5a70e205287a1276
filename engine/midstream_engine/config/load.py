"""From a command line to a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import draccus
import yaml
from draccus.utils import DecodingError, ParsingError

from midstream_engine.config import keys, yaml_file
from midstream_engine.config.errors import ConfigError
from midstream_engine.config.train import TrainLmConfig

USAGE = "python -m midstream_engine.train --config_path FILE [--SECTION.KEY VALUE ...]"


@dataclass(frozen=True)
class Loaded:
    """A configuration and the lines that a person should see about it."""

    config: TrainLmConfig
    notes: list[str]  # keys without effect
    warnings: list[str]  # values that are probably not meant


def load_config(arguments: Sequence[str]) -> Loaded:
    """The configuration that ``--config_path FILE --a.b VALUE ...`` describes; values are read as YAML.

    Raises ConfigError: one line with file, line and key as far as they are known.
    """
    path, overrides = parse_arguments(arguments)
    value: Any = {}
    if path is not None:
        try:
            value = yaml_file.load(path)
        except OSError as error:
            raise ConfigError(f"--config_path {path}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"--config_path {path}: not a text file ({error.reason})") from None
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise ConfigError(f"{path}:1: expected keys and values (data, model, trainer, optimizer)")
    for flag, item in overrides:
        _assign(value, flag, item)
    return from_mapping(value)


def from_mapping(value: dict[str, Any]) -> Loaded:
    """The configuration that nested mappings describe."""
    notes: list[str] = []
    normalised = keys.normalise(TrainLmConfig, value, notes)
    try:
        config = draccus.decode(TrainLmConfig, normalised)
    except (ParsingError, DecodingError) as error:
        raise _one_line(error, normalised) from None
    return Loaded(config, notes, [*config.optimizer.warnings(), *config.trainer.warnings()])


def parse_arguments(arguments: Sequence[str]) -> tuple[str | None, list[tuple[str, Any]]]:
    """``--config_path``'s value, and the other flags with their values in order."""
    path, overrides = None, []
    pending = list(arguments)
    while pending:
        flag = pending.pop(0)
        if not flag.startswith("--") or flag == "--":
            raise ConfigError(f"{flag!r}: expected a flag; usage: {USAGE}")
        name, equals, text = flag[2:].partition("=")
        if not equals:
            if not pending:
                raise ConfigError(f"--{name} needs a value; usage: {USAGE}")
            text = pending.pop(0)
        if name in ("config_path", "config"):
            path = text
            continue
        try:
            overrides.append((name, yaml_file.parse_value(text)))
        except yaml.YAMLError:
            raise ConfigError(f"--{name}: {text!r} is not a YAML value; quote it") from None
    return path, overrides


def _assign(value: dict[str, Any], flag: str, item: Any) -> None:
    """Set ``a.b.c`` in nested mappings, making those that are missing."""
    *parents, last = flag.split(".")
    for parent in parents:
        if value.get(parent) is None:
            value[parent] = yaml_file.Mapping()
        value = value[parent]
        if not isinstance(value, dict):
            raise ConfigError(f"--{flag}: {parent} has no keys")
    if isinstance(value, yaml_file.Mapping):
        value.places[last] = f"--{flag}"
    value[last] = item


def _one_line(error: Exception, value: Any) -> ConfigError:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConfigError):
            return cause
        cause = cause.__cause__
    key_path = [str(part) for part in getattr(error, "key_path", ())]
    message = " ".join(str(getattr(error, "message", error)).split())
    place = ""
    for part in key_path:
        if not isinstance(value, dict):
            break
        place = getattr(value, "places", {}).get(part) or place
        value = value.get(part)
    return ConfigError(f"{f'{place}: ' if place else ''}{'.'.join(key_path) or 'configuration'}: {message}")
