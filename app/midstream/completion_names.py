"""Names for shell completion, from the fleet file and the state directory.

No connection is opened. `midstream --print-names KIND WORD...` prints the names; WORDs are those of the command line
before the one to complete.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from midstream.flag_parser import FlagParser
from midstream.state_directory import state_directory
from midstream.watch.known_names import read_names
from midstream_core.json_types import JsonValue

# bash expands the words that it is offered, so `$(...)` in a name that a host has sent would be executed.
_PLAIN = re.compile(r"[A-Za-z0-9._:/@~+=,%-]+")
FLAGS = "flags"  # the kind of `flag_names`
KINDS = (FLAGS, "targets", "runs", "checkpoints", "steps", "migrations", "configs")


def local_names(kind: str, words: Sequence[str] = ()) -> list[str]:
    """Return the known names of a kind, except flags; unreadable files have none."""
    readers = {
        "targets": lambda: _targets(_fleet_file(words)),
        "runs": lambda: _runs(_fleet_file(words)),
        "checkpoints": lambda: _checkpoints(_fleet_file(words), words),
        "steps": lambda: _steps(_fleet_file(words), words),
        "migrations": _migrations,
        "configs": _configs,
    }
    return [name for name in dict.fromkeys(readers[kind]()) if _PLAIN.fullmatch(name)]


def flag_names(flags: FlagParser, words: Sequence[str] = ()) -> Iterator[str]:
    """Yield the modes, or the flags that go with the mode among the words."""
    given = [word for word in words if word in flags.notes]
    mode = next((name for name in given if flags.notes[name].is_mode), None)
    if mode is None:
        yield from flags.modes
    for name, note in flags.notes.items():
        if mode is not None and name not in given and (mode in note.of or not (note.is_mode or note.of)):
            yield name


def _value(words: Sequence[str], flag: str) -> str:
    """Return the value that a flag has in the words; empty if it has none."""
    return next((value for name, value in itertools.pairwise(words) if name == flag), "")


def _fleet_file(words: Sequence[str]) -> Path:
    named = _value(words, "--fleet") or os.environ.get("MIDSTREAM_FLEET") or "~/.config/midstream/fleet.yaml"
    return Path(named).expanduser()


def _targets(fleet_file: Path) -> Iterator[str]:
    import yaml

    from midstream.fleet.fleet_yaml import load_yaml

    try:
        content: object = load_yaml(fleet_file.read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return
    for section in ("hosts", "targets"):
        entries = content.get(section) if isinstance(content, dict) else None
        yield from map(str, entries) if isinstance(entries, dict) else ()


def _runs(fleet_file: Path) -> Iterator[str]:
    for runs in read_names(fleet_file).values():
        yield from sorted(runs)


def _of_runs(fleet_file: Path, field: str, run_id: str = "") -> Iterator[JsonValue]:
    """Yield the values of a field of all runs, or of one."""
    for runs in read_names(fleet_file).values():
        for name, seen in runs.items():
            if isinstance(seen, dict) and run_id in ("", name):
                yield from seen.get(field, ())


def _checkpoints(fleet_file: Path, words: Sequence[str]) -> Iterator[str]:
    yield from _runs(fleet_file)
    if "--verify" in words:
        yield from _migrations()
    yield from map(str, _of_runs(fleet_file, "checkpoints"))


def _steps(fleet_file: Path, words: Sequence[str]) -> Iterator[str]:
    yield from ("now", "latest")
    if run_id := _value(words, "--migrate"):
        yield from map(str, _of_runs(fleet_file, "steps", run_id))


def _configs() -> Iterator[str]:
    from midstream.bundled_files import config_names
    from midstream.errors import MidstreamError

    with contextlib.suppress(MidstreamError):
        yield from config_names()


def _migrations() -> Iterator[str]:
    try:
        yield from sorted(os.listdir(state_directory() / "migrations"), reverse=True)
    except OSError:
        return
