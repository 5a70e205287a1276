"""A log on a host, read from its beginning, a part at a time."""

from __future__ import annotations

from collections.abc import Iterator

from midstream.errors import RemoteError
from midstream.hosts.host import Host
from midstream.hosts.rpc.result_checks import HINT

PART = 1 << 20  # bytes of a log in one answer


def log_parts(host: Host, path: str) -> Iterator[str]:
    """Yield the log at ``path`` as text, in parts of whole lines. RemoteError where the host skips or repeats bytes: a
    log that begins again and again has no end."""
    offset = 0
    while (part := host.call("runs.run_state.read_lines", path=path, offset=offset, limit=PART))["text"]:
        if not offset < part["offset"] <= offset + PART:
            raise RemoteError(
                f"{host.name}: runs.read_lines: offset {part['offset']} after {offset} in {path}", "Answer", HINT
            )
        offset = part["offset"]
        yield part["text"]
