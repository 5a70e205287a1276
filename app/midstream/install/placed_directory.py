"""Directories of a host that are installed once, and appear complete.

Hosts that share a file system may install the same one at the same time. Each fills a directory of its own,
`NAME.part-RANDOM`, and renames it to `NAME` at its end.
"""

from __future__ import annotations

import secrets

from midstream.hosts.host import Host

COMPLETE = '[ -f "$1/.complete" ]'  # shell: whether directory $1 is complete

# A killed installation does not remove its directory. That of one that still runs has changed within a day.
_REMOVE_PARTS = """\
find "${1%/*}" -maxdepth 1 -name '*.part*' -mtime +0 -exec rm -rf -- {} + 2>/dev/null || :
"""
_INSTALL = """\
set -e
if READY; then cat >/dev/null; exit 0; fi
trap 'rm -rf -- "$2"' EXIT
trap 'exit 1' HUP INT TERM # a signal alone does not run the EXIT trap of dash
mkdir -p -- "$2"
FILL
: > "$2/.complete"
if READY; then exit 0; fi
# What is there and not complete was left by an earlier installation. It is emptied from within: at its name there may
# be the complete directory of another installation at any moment.
if [ -d "$1" ]; then (
    cd -P -- "$1" 2>/dev/null || exit 0
    name=$1; set -- .
    READY || { find . ! -name . -prune -exec rm -rf -- {} + || :; rmdir -- "$name" || :; }
) fi
mv -- "$2" "$1"
rm -rf -- "$1/${2##*/}" # another one was moved there in between
READY || { echo "$1 is not complete, and cannot be removed" >&2; exit 1; }
"""


def is_complete(host: Host, directory: str, complete: str = COMPLETE) -> bool:
    """Return whether a directory is complete.

    What killed installations left beside it is removed, once it is a day old.

    Args:
        host: The host.
        directory: Absolute path.
        complete: Shell command that tests directory ``$1``.
    """
    return host.run(["sh", "-c", _REMOVE_PARTS + complete, "sh", directory]).returncode == 0


def install_command(directory: str, fill: str, complete: str = COMPLETE) -> list[str]:
    """Return the command that installs a directory, unless it is complete already.

    The command exits with 0 if the directory is complete at the end.

    Args:
        directory: Absolute path.
        fill: Shell commands that fill directory ``$2`` from stdin. Afterwards its file `.complete` is created.
        complete: Shell command that tests directory ``$1``, or ``$2`` under the name ``$1``.
    """
    script = _INSTALL.replace("READY", f"{{ {complete}; }}").replace("FILL", fill.rstrip("\n"))
    return ["sh", "-c", script, "sh", directory, f"{directory}.part-{secrets.token_hex(8)}"]
