"""Names, tags and notes of runs, in `$MIDSTREAM_STATE/labels.json`.

The id of a run stays what it is on all hosts: a name is shown beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from midstream.errors import MidstreamError, UsageError
from midstream.printable import printable
from midstream.state_directory import make_directory, state_directory
from midstream_core import records
from midstream_core.json_types import JsonObject, JsonValue, object_or_empty

MAX_NAME, MAX_NOTE = 80, 500  # characters
MAX_TAGS = 20
MAX_UNDO = 50  # edits that can be undone
FORMAT = 1


@dataclass(frozen=True)
class Label:
    """Name, tags and note of a run; all may be empty."""

    name: str = ""
    tags: tuple[str, ...] = ()
    note: str = ""

    @classmethod
    def read(cls, name: str, tags: str, note: str) -> Label:
        """Read what a user has written; tags are separated by commas or spaces.

        Raises:
            UsageError: One of them is too long, or there are too many tags.
        """
        tag_list = tuple(dict.fromkeys(filter(None, re.split(r"[,\s]+", printable(tags)))))
        label = cls(printable(name).strip(), tag_list, printable(note).strip())
        for what, text, most in (("name", label.name, MAX_NAME), ("note", label.note, MAX_NOTE)):
            if len(text) > most:
                raise UsageError(f"the {what} has {len(text)} characters, at most {most} are allowed")
        if len(tag_list) > MAX_TAGS or any(len(tag) > MAX_NAME for tag in tag_list):
            raise UsageError(f"at most {MAX_TAGS} tags of at most {MAX_NAME} characters are allowed")
        return label


@dataclass(frozen=True)
class Labels:
    """Labels by run id, and what was before each edit, the newest last."""

    labels: Mapping[str, Label] = field(default_factory=dict[str, Label])
    edits: tuple[tuple[str, Label], ...] = ()

    def of(self, run_id: str) -> Label:
        """Return the label of a run, an empty one without any."""
        return self.labels.get(run_id, Label())

    def edited(self, run_id: str, label: Label) -> Labels:
        """Return the labels after an edit."""
        return Labels(_with(self.labels, run_id, label), (*self.edits, (run_id, self.of(run_id)))[-MAX_UNDO:])

    def undone(self) -> tuple[Labels, str]:
        """Return the labels before the last edit, and the run that it was of.

        Raises UsageError without an edit.
        """
        if not self.edits:
            raise UsageError("there is no edit of a name, tag or note to undo")
        *earlier, (run_id, label) = self.edits
        return Labels(_with(self.labels, run_id, label), tuple(earlier)), run_id


def labels_file() -> Path:
    """Return the file of the labels."""
    return state_directory() / "labels.json"


def load() -> Labels:
    """Return the stored labels.

    Raises MidstreamError where the file cannot be read: an edit would replace it.
    """
    file = labels_file()
    try:
        stored = object_or_empty(json.loads(file.read_text(encoding="utf-8")))
        by_run = {run_id: _label(value) for run_id, value in object_or_empty(stored.get("labels")).items()}
        listed = stored.get("edits", [])
        if not isinstance(listed, list):
            raise TypeError("edits")
        edits = [(str(of["run"]), _label(of["before"])) for of in map(object_or_empty, listed)]
    except FileNotFoundError:
        return Labels()
    except (OSError, ValueError, TypeError, KeyError, RecursionError, AttributeError):
        raise MidstreamError(f"{file} cannot be read", "repair it, or move it away") from None
    return Labels(by_run, tuple(edits))


def edit(run_id: str, label: Label) -> Labels:
    """Set the label of a run, and return all labels as they are stored then."""
    return _store(load().edited(run_id, label))


def undo() -> tuple[Labels, str]:
    """Undo the last edit; return the labels, and the run that it was of."""
    labels, run_id = load().undone()
    return _store(labels), run_id


def _store(labels: Labels) -> Labels:
    file = labels_file()
    values: JsonObject = {
        "format": FORMAT,
        "labels": {run_id: asdict(label) for run_id, label in labels.labels.items()},
        "edits": [{"run": run_id, "before": asdict(label)} for run_id, label in labels.edits],
    }
    try:
        make_directory(file.parent)
        records.write_bytes(str(file), (json.dumps(values, indent=1) + "\n").encode())
    except OSError as error:
        raise MidstreamError(f"{file} cannot be written: {error.strerror}", "free space there") from error
    return labels


def _with(labels: Mapping[str, Label], run_id: str, label: Label) -> dict[str, Label]:
    others = {name: value for name, value in labels.items() if name != run_id}
    return others if label == Label() else {**others, run_id: label}


def _label(value: JsonValue) -> Label:
    fields = object_or_empty(value)
    tags = fields.get("tags", [])
    if not isinstance(tags, list):
        raise TypeError("tags")
    return Label(str(fields.get("name", "")), tuple(map(str, tags)), str(fields.get("note", "")))
