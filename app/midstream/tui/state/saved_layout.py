"""Layout of the screens, saved between starts in `$MIDSTREAM_STATE/screen.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from midstream.charts.smoothing import DEFAULT_FACTOR
from midstream.state_directory import make_directory
from midstream.tui.style import palette
from midstream_core import records
from midstream_core.json_types import JsonValue

MAX_FLEETS = 20  # fleet files whose lists are remembered
UNSAVED = ("file", "fleet", "problem", "fleets", "has_theme")


@dataclass
class ListLayout:
    """Layout of one list: filter, order, groups and columns."""

    filter: str = ""
    sort: str = ""  # name of a field; empty: the default order
    descending: bool = False
    group: str = ""  # name of a field
    hide_finished: bool = False
    columns: list[str] = field(default_factory=list)  # titles; empty: the default columns


@dataclass
class SavedLayout:
    """Layout settings and the file they are saved to; without a file nothing is saved.

    ``fleets`` holds the lists of each fleet file, because a filter names hosts and runs; the newest is the last.
    """

    theme: str = palette.DEFAULT
    view: str = "runs"  # view of the fleet screen
    tiles: bool = True
    axis: str = "step"
    log: bool = False
    robust: bool = True
    smoothing: float = DEFAULT_FACTOR  # factor
    log_x: bool = False
    wrap: bool = False
    file: Path | None = None
    fleet: str = ""  # path of the fleet file
    fleets: dict[str, dict[str, ListLayout]] = field(default_factory=dict)  # fleet file -> view -> list
    has_theme: bool = False  # a theme was saved
    problem: str = ""  # why the file was ignored, or a part of it

    @classmethod
    def load(cls, file: Path, fleet: str = "") -> SavedLayout:
        """Load a saved layout, with defaults for a missing file.

        What cannot be read is ignored and has its default; ``problem`` says so.
        """
        layout = cls(file=file, fleet=fleet)
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return layout
        except (OSError, ValueError, RecursionError) as error:
            layout.problem = f"{file} is ignored: {getattr(error, 'strerror', None) or 'it is not JSON'}"
            return layout
        damaged = [] if isinstance(stored, dict) else ["it is no object"]
        values = stored if isinstance(stored, dict) else {}
        damaged += _fill(layout, values)
        layout.has_theme = "theme" in values
        remembered = values.get("fleets", {})
        if not isinstance(remembered, dict):
            damaged.append("fleets")
            remembered = {}
        for path, views in list(remembered.items())[-MAX_FLEETS:]:
            layout.fleets[path] = {}
            for view, value in views.items() if isinstance(views, dict) else ():
                entry = layout.fleets[path][view] = ListLayout()
                damaged += [f"{view}: {name}" for name in _fill(entry, value)]
        if damaged:
            layout.problem = f"{file} is damaged, defaults are used for: {', '.join(damaged[:3])}"
        return layout

    def list_of(self, view: str) -> ListLayout:
        """Return the layout of a list of this fleet."""
        views = self.fleets.setdefault(self.fleet, {})
        return views.setdefault(view, ListLayout())

    def save(self) -> None:
        """Save atomically. A failure is ignored: the layout is a convenience."""
        if self.file is None:
            return
        if self.fleet in self.fleets:
            self.fleets[self.fleet] = self.fleets.pop(self.fleet)  # the last one is dropped last
        values = {name: value for name, value in asdict(self).items() if name not in UNSAVED}
        values["fleets"] = {path: asdict_views(views) for path, views in list(self.fleets.items())[-MAX_FLEETS:]}
        with suppress(OSError):
            make_directory(self.file.parent)
            text = json.dumps(values, indent=1) + "\n"
            records.write_bytes(str(self.file), text.encode(), durable=False)


def asdict_views(views: Mapping[str, ListLayout]) -> dict[str, JsonValue]:
    """Return the lists of a fleet as JSON."""
    return {view: asdict(layout) for view, layout in views.items()}


def _fill(layout: Any, values: object) -> list[str]:
    """Set the fields that ``values`` has with the right type; return the other names."""
    if not isinstance(values, dict):
        return ["it is no object"]
    damaged = []
    for setting in fields(layout):
        if setting.name in UNSAVED or setting.name not in values:
            continue
        value, before = values[setting.name], getattr(layout, setting.name)
        if type(value) is not type(before) or (
            type(value) is list and not all(isinstance(item, str) for item in value)
        ):
            damaged.append(setting.name)
        else:
            setattr(layout, setting.name, value)
    return damaged
