"""Output of the headless modes: data on stdout, messages on stderr.

With --json each line of stdout is an object.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from typing import Any, TextIO

from midstream.errors import Exit, MidstreamError
from midstream.printable import excerpt, printable


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
                value = {"exit_code": int(Exit.DONE if value["ok"] else Exit.FAILED), **value}
            self._write(self._data, json_text(value).replace("\x7f", "\\u007f"))
        else:
            for line in ([text] if text else []) if isinstance(text, str) else text:
                self._write(self._data, line)

    @property
    def columns(self) -> int | None:
        """Cells of a line of the terminal that gets the values; None without one."""
        return shutil.get_terminal_size().columns if self._data.isatty() else None

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
            self.value(
                {
                    "event": "result",
                    "ok": False,
                    "error": error.message,
                    "hint": error.hint,
                    "exit_code": int(error.code),
                }
            )

    @staticmethod
    def _write(stream: TextIO, line: str) -> None:
        stream.write(printable(line, keep="\t") + "\n")
        stream.flush()


def has_screen() -> bool:
    """Return True if stdin, stdout and stderr are terminals."""
    return sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()


def json_text(value: Any, **options: Any) -> str:
    """Return a value as JSON text; ``options`` are those of `json.dumps`.

    Numbers that are not finite become null, because JSON has no form for them: many readers refuse the complete text.
    """
    try:
        return json.dumps(value, default=str, allow_nan=False, **options)
    except ValueError:
        from midstream_engine.records import finite_json  # rarely needed

        return json.dumps(finite_json(value), default=str, allow_nan=False, **options)


def size(count: float) -> str:
    """Format bytes: ``4.2 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """Format a duration: ``0.4s``, ``12s``, ``3m20``, ``2h05``, ``4d``.

    One that is not finite is ``-``.
    """
    if not math.isfinite(seconds):
        return "-"
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f}s"
    if seconds < 99.5:
        return f"{seconds:.0f}s"
    if seconds < 3600:
        return f"{int(seconds) // 60}m{int(seconds) % 60:02d}"
    if seconds < 172800:
        return f"{int(seconds) // 3600}h{int(seconds) % 3600 // 60:02d}"
    return f"{int(seconds) // 86400}d"


def age(then: float | None, now: float | None = None) -> str:
    """Format the age of ``then``: ``12s``, ``4m``, ``3h``, ``2d``; ``-`` if unknown."""
    if not then:
        return "-"
    seconds = max(0.0, (time.time() if now is None else now) - then)
    for limit, divisor, unit in ((90, 1, "s"), (5400, 60, "m"), (129600, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f}{unit}"
    return f"{seconds / 86400:.0f}d"


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Format rows in columns as wide as their widest cell."""
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
