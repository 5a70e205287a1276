"""Base class of the JSON lines of --json."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, dataclass_transform

RUN, HOST, TARGET = "the run's id", "the host's name in the fleet file", "the target's name in the fleet file"
MIGRATION = "the migration's id"
VALUES = "values"  # the field with those of an event whose names are not fixed


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class JsonEvent:
    """One kind of JSON line. Its subclasses are dataclasses.

    The docstring of a subclass says what the line is about.

    A field is annotated with its meaning. One whose default is None is left out where it does not apply. A name that is
    a keyword of Python ends with an underscore, which the line lacks.
    """

    event: ClassVar[str]  # value of the field `event`
    of: ClassVar[tuple[str, ...]]  # modes that print it
    more: ClassVar[str]  # what the other fields are, where their names are not fixed

    def __init_subclass__(cls, *, event: str = "", of: tuple[str, ...] = (), more: str = "") -> None:
        """Make a dataclass of a kind of event; without a name, of the base class's."""
        if event:
            cls.event = event
        cls.of, cls.more = of, more
        dataclass(frozen=True, kw_only=True)(cls)

    def fields(self) -> dict[str, Any]:
        """Return the fields that apply, without the name of the event."""
        values: dict[str, Any] = {}
        for name, value in vars(self).items():
            if name == VALUES:
                values |= value
            elif value is not None or not hasattr(type(self), name):
                values[name.rstrip("_")] = value
        return values

    def to_json(self) -> dict[str, Any]:
        """Return the line's object."""
        return {"event": self.event, **self.fields()}
