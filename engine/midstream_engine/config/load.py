"""Load a configuration from a command line or a mapping."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import draccus
from draccus.utils import DecodingError, ParsingError

from midstream_engine.config import keys, yaml_file
from midstream_engine.config.errors import ConfigError
from midstream_engine.config.train import TrainLmConfig

USAGE = "python -m midstream_engine.train --config_path FILE [--SECTION.KEY VALUE ...]"


@dataclass(frozen=True)
class Loaded:
    """A configuration, and lines about it for the user."""

    config: TrainLmConfig
    notes: list[str]  # keys without effect
    warnings: list[str]  # values that are probably mistakes


def load_config(arguments: Sequence[str]) -> Loaded:
    """Load the configuration of ``--config_path FILE --a.b VALUE ...``.

    Values are YAML.

    Raises:
        ConfigError: The configuration is wrong; one line with file, line and key if they are known.
    """
    path, overrides = parse_arguments(arguments)
    value: object = {}
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
    """Load the configuration of nested mappings.

    Raises:
        ConfigError: The configuration is wrong.
    """
    notes: list[str] = []
    normalised = keys.normalise(TrainLmConfig, value, notes)
    try:
        config = draccus.decode(TrainLmConfig, normalised)
    except (ParsingError, DecodingError) as error:
        raise _one_line(error, normalised) from None
    parts = (config.data, config.optimizer, config.trainer)
    return Loaded(config, notes, [line for piece in parts for line in piece.warnings()])


# What draccus appends to "Couldn't parse '[1]' into a int" about its own functions.
_INTERNALS = re.compile(r": decode_\w+\(\) .*")


def parse_arguments(arguments: Sequence[str]) -> tuple[str | None, list[tuple[str, Any]]]:
    """Return ``--config_path``'s value, and the other flags with values, in order.

    Raises:
        ConfigError: An argument is no flag, or its value is missing or no YAML.
    """
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
        overrides.append((name, yaml_file.parse_value(text, f"--{name}")))
    return path, overrides


def _assign(value: dict[str, Any], flag: str, item: Any) -> None:
    """Set ``a.b.c`` in nested mappings, creating missing ones."""
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


def _one_line(error: Exception, value: object) -> ConfigError:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConfigError):
            return cause
        cause = cause.__cause__
    key_path = [str(key) for key in getattr(error, "key_path", ())]
    message = _INTERNALS.sub("", " ".join(str(getattr(error, "message", error)).split()))
    place = ""
    for name in key_path:
        if not isinstance(value, dict):
            break
        place = getattr(value, "places", {}).get(name) or place
        value = value.get(name)
    key = ".".join(key_path) or "configuration"
    where = place if place == f"--{key}" else f"{place}: {key}" if place else key
    return ConfigError(f"{where}: {message}")
