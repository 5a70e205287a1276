"""Own keys, in `$MIDSTREAM_KEYS` or `~/.config/midstream/keys.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml
from textual.app import App
from textual.keys import _character_to_key

from midstream.errors import UsageError
from midstream.plain_yaml import load_plain
from midstream.suggestions import nearest
from midstream.tui import commands

MAX_SIZE = 100_000  # characters


def read(file: Path) -> dict[str, tuple[str, ...]]:
    """Return the own keys by the id of their command, empty without a file.

    Raises:
        UsageError: The file cannot be read, names no command, or gives one key to two commands of a screen.
    """
    try:
        values = load_plain(file.read_text(encoding="utf-8")[:MAX_SIZE]) or {}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        words = " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
        raise UsageError(f"{file} cannot be read: {words}", "write lines such as fleet.migrate: M") from None
    if not isinstance(values, Mapping):
        raise UsageError(f"{file} has no lines of COMMAND: KEY", "write lines such as fleet.migrate: M")
    by_id = {command.id: command for command in commands.COMMANDS}
    own_keys: dict[str, tuple[str, ...]] = {}
    for name, keys in values.items():
        if name not in by_id:
            raise UsageError(f"{file}: no command {name!r}", nearest(str(name), tuple(by_id)))
        listed = keys if isinstance(keys, list) else [keys]
        if not listed or not all(isinstance(key, str | int) and not isinstance(key, bool) for key in listed):
            raise UsageError(f"{file}: {name} needs a key, or a list of keys", f"{name}: M")
        own_keys[name] = tuple(str(key) for key in listed)
    _refuse_clashes(file, own_keys)
    return own_keys


def _refuse_clashes(file: Path, own_keys: Mapping[str, tuple[str, ...]]) -> None:
    for scope in commands.SCOPES:
        taken: dict[str, str] = {}
        for command in commands.of(scope, *commands.PARTS.get(scope, ()), commands.EVERYWHERE):
            for key in own_keys.get(command.id, command.keys):
                other = taken.setdefault(key, command.id)
                if other != command.id and {other, command.id} & own_keys.keys():
                    raise UsageError(
                        f"{file}: {other} and {command.id} have both {key}", "give one of them another key"
                    )


def use(app: App[int], keys: Mapping[str, tuple[str, ...]]) -> None:
    """Bind the own keys, and show them in hints and help."""
    commands.OWN_KEYS.clear()
    commands.OWN_KEYS.update(keys)
    app.set_keymap({name: ",".join(map(_named, own)) for name, own in keys.items()})


def _named(key: str) -> str:
    return _character_to_key(key) if len(key) == 1 else key
