"""How a person left the screens: kept between starts, in `$MIDSTREAM_STATE/screen.json`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from midstream.tui import palette


@dataclass
class Layout:
    """What is kept. ``file``: where; None keeps nothing."""

    theme: str = palette.DEFAULT
    view: str = "runs"  # of the fleet
    sorts: dict[str, list[int]] = field(default_factory=dict)  # view -> [column, 1 for downwards]
    tiles: bool = True
    axis: str = "step"
    log: bool = False
    robust: bool = True
    smoothing: int = 0
    wrap: bool = False
    file: Path | None = None

    @classmethod
    def load(cls, file: Path) -> Layout:
        """What is kept there; the usual where there is nothing, or nothing that can be read."""
        layout = cls(file=file)
        try:
            kept = json.loads(file.read_text())
        except (OSError, ValueError):
            return layout
        for each in fields(cls):
            value = kept.get(each.name) if isinstance(kept, dict) else None
            if each.name != "file" and type(value) is type(getattr(layout, each.name)):
                setattr(layout, each.name, value)
        return layout

    def save(self) -> None:
        """Whole or not at all. A disk that takes nothing is no reason to disturb anybody."""
        if self.file is None:
            return
        kept = {name: value for name, value in asdict(self).items() if name != "file"}
        fresh = self.file.with_name(f"{self.file.name}.{os.getpid()}")
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_text(json.dumps(kept, indent=1) + "\n")
            fresh.replace(self.file)
        except OSError:
            return
