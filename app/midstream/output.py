"""What the flags print: stdout is data, stderr is talk. With --json every line of stdout is one JSON object."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, TextIO

from midstream.errors import Exit, MidstreamError
from midstream.printable import excerpt, printable


class Output:
    """Where a headless command writes."""

    def __init__(self, as_json: bool, data: TextIO | None = None, talk: TextIO | None = None):
        self.as_json = as_json
        self._data = data or sys.stdout
        self._talk = talk or sys.stderr

    def value(self, value: dict[str, Any], text: str | list[str] = "") -> None:
        """A datum: the JSON object under --json, else its text. A result always holds its exit code."""
        if self.as_json:
            if value.get("event") == "result":
                value = {"exit_code": int(Exit.DONE if value["ok"] else Exit.FAILED), **value}
            self._write(self._data, json.dumps(value, default=str).replace("\x7f", "\\u007f"))
        else:
            for line in ([text] if text else []) if isinstance(text, str) else text:
                self._write(self._data, line)

    def talk(self, line: str) -> None:
        """A line for the person who waits."""
        self._write(self._talk, line)

    def error(self, error: MidstreamError) -> None:
        """The one line that says what is wrong and what to do."""
        self.talk(f"midstream: {excerpt(error.message)}" + (f" ({error.hint})" if error.hint else ""))
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
    """Whether a person sits there: keys come from stdin, the screen is drawn on stderr, and stdout is no pipe."""
    return sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()


def size(count: float) -> str:
    """Bytes for people: ``4.2 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def age(then: float | None, now: float | None = None) -> str:
    """Seconds since ``then`` for people: ``12s``, ``4m``, ``3h``, ``2d``; ``-`` where unknown."""
    if not then:
        return "-"
    seconds = max(0.0, (time.time() if now is None else now) - then)
    for limit, divisor, unit in ((90, 1, "s"), (5400, 60, "m"), (129600, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f}{unit}"
    return f"{seconds / 86400:.0f}d"


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Columns as wide as their widest cell."""
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
