"""Output of the headless modes: data on stdout, messages on stderr.

With --json each line of stdout is an object.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any, TextIO

from midstream.errors import Exit, MidstreamError
from midstream.printable import excerpt, printable

if TYPE_CHECKING:
    from midstream.json_events.json_event import JsonEvent

NO_SCREEN = ("", "dumb", "unknown")  # values of $TERM of terminals that cannot move their cursor


class Output:
    """Output streams of a headless command."""

    def __init__(self, as_json: bool, data: TextIO | None = None, messages: TextIO | None = None) -> None:
        self.as_json = as_json
        self._data = data or sys.stdout
        self._messages = messages or sys.stderr

    def value(self, value: dict[str, Any], text: str | list[str] = "") -> None:
        """Write a value: the JSON object with --json, else the text.

        A result always has its exit code.
        """
        if self.as_json:
            if value.get("event") == "result":
                code = value.get("exit_code")
                value = {
                    **value,
                    "exit_code": int((Exit.DONE if value["ok"] else Exit.FAILED) if code is None else code),
                }
            self._write(self._data, json_text(value).replace("\x7f", "\\u007f"))
        else:
            for line in ([text] if text else []) if isinstance(text, str) else text:
                self._write(self._data, line)

    def event(self, event: JsonEvent, text: str | list[str] = "") -> None:
        """Write an event with --json, else the text."""
        self.value(event.to_json() if self.as_json else {}, text)

    @property
    def columns(self) -> int | None:
        """Cells of a line of the terminal that gets the values; None without one."""
        return shutil.get_terminal_size().columns if self._data.isatty() else None

    @property
    def live_terminal(self) -> TextIO | None:
        """Terminal of the messages that can redraw a line; None without, and with --json."""
        redraws = self._messages.isatty() and os.environ.get("TERM", "") not in NO_SCREEN
        return self._messages if redraws and not self.as_json else None

    def message(self, line: str) -> None:
        """Write a line about the progress of the command."""
        self._write(self._messages, line)

    def alert(self, text: str) -> None:
        """Ring the bell and show a desktop notification, if the messages go to a terminal."""
        if self._messages.isatty():
            from midstream.terminal_alert import alert

            self._messages.write(alert(text))
            self._messages.flush()

    def error(self, error: MidstreamError) -> None:
        """Write an error: its message and hint."""
        self.message(f"midstream: {excerpt(error.message)}" + (f" ({error.hint})" if error.hint else ""))
        if self.as_json:
            from midstream.json_events.result_event import ErrorResult

            self.event(ErrorResult(ok=False, exit_code=int(error.code), error=error.message, hint=error.hint))

    @staticmethod
    def _write(stream: TextIO, line: str) -> None:
        stream.write(printable(line, keep="\t") + "\n")
        stream.flush()


def has_screen() -> bool:
    """Return True if the terminal UI can be shown here."""
    return not missing_screen()


def missing_screen() -> str:
    """Return what the terminal UI needs and this process lacks; empty if it has all."""
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        return "a terminal"
    kind = os.environ.get("TERM", "")
    if kind in NO_SCREEN:
        return f"a terminal that can move its cursor, and TERM is {kind or 'not set'}"
    return ""


def json_text(value: Any, **options: Any) -> str:
    """Return a value as JSON text; ``options`` are those of `json.dumps`.

    Numbers that are not finite become null, because JSON has no form for them: many readers refuse the complete text.
    """
    try:
        return json.dumps(value, default=str, allow_nan=False, **options)
    except ValueError:
        from midstream_core.records import finite_json  # rarely needed

        return json.dumps(finite_json(value), default=str, allow_nan=False, **options)


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Format rows in columns as wide as their widest cell."""
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
