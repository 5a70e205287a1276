"""Secrets on their way to a host: over stdin, into a file that its owner alone can read. Never in a command line."""

from __future__ import annotations

import posixpath

from midstream.errors import HostError
from midstream.hosts.host import Host

# The file is complete or not there: a connection that is cut ends stdin early, so its length is checked.
_WRITE = """\
umask 077
mkdir -p -- "$2" && rm -f -- "$1.part" && cat > "$1.part" || exit 1
if [ "$(wc -c < "$1.part")" -eq "$3" ]; then exec mv -f -- "$1.part" "$1"; fi
rm -f -- "$1.part"; echo "it was cut off" >&2; exit 1
"""
_REMOVE = 'rm -f -- "$1" "$1.part"'


def write_private(host: Host, path: str, data: bytes) -> None:
    """Write ``data`` to ``path`` (absolute) on the host with mode 0600, in a directory that is made 0700 where it is
    missing. Needs no Python there. HostError, which never shows the data, where it fails."""
    _sh(host, _WRITE, path, data)


def remove_private(host: Host, path: str) -> None:
    """Remove what `write_private` wrote. Idempotent."""
    _sh(host, _REMOVE, path, b"")


def _sh(host: Host, script: str, path: str, data: bytes) -> None:
    if not path.startswith("/"):
        raise ValueError(f"{path!r} is not absolute")
    done = host.run(["sh", "-c", script, "sh", path, posixpath.dirname(path), str(len(data))], stdin=data)
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise HostError(f"{host.name}: {path} cannot be written: {words[-1] if words else f'exit {done.returncode}'}")
