"""What the programs of a copy report, checked: they run on hosts, and their lines are data from there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from midstream.hosts.host import Process
from midstream.hosts.rpc.remote_program import reports
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import TransferError


def _number(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _rows(*kinds: Any) -> Any:
    def fits(value: Any) -> bool:
        return isinstance(value, list) and all(
            isinstance(row, list)
            and len(row) == len(kinds)
            and all(k(each) for k, each in zip(kinds, row, strict=True))
            for row in value
        )

    return fits


# Event -> its fields; those of _OPTIONAL may be missing.
_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "landed": {"bytes": _number, "objects": _texts, "ranges": _rows(_text, _number, _number)},
    "placed": {"objects": _texts},
    "present": {"objects": _texts},
    "held": {"objects": _texts},
    "part": {"path": _text, "chunks": _rows(_number, _number, _text)},
    "listening": {"port": _number, "addresses": _texts},
    "problem": {
        "kind": _text, "path": _text, "message": _text, "hint": _text, "free": _number, "needed": _number,
    },
    "waiting": {"message": _text},
    "ready": {}, "committed": {}, "done": {},
}  # fmt: skip
_OPTIONAL = frozenset({"addresses", "path", "message", "hint", "free", "needed"})


def checked_reports(process: Process, place: Endpoint) -> Iterator[dict[str, Any]]:
    """The lines of a copy's program at ``place``. TransferError at one that is no such line."""
    for report in reports(process):
        event = report.get("event") if isinstance(report, dict) else None
        fields = _FIELDS.get(event) if isinstance(event, str) else None
        if fields is None or not all(
            fits(report[name]) if name in report else name in _OPTIONAL and event != "part"
            for name, fits in fields.items()
        ):
            raise TransferError(
                f"{place.host.name}: the program of the copy to {place} reports a line of another shape",
                f"look at what answers on {place.host.name}",
            )
        yield report
