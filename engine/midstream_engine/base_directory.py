"""Where relative paths of a configuration begin.

A launched engine starts in an empty directory of its own, because other programs' modules and settings are read from
the directory that a process starts in; its launcher names the run's directory in ``$MIDSTREAM_RUN_DIRECTORY``, and
relative paths begin there. An engine that a person starts by hand takes them as the shell does.
"""

from __future__ import annotations

import os

VARIABLE = "MIDSTREAM_RUN_DIRECTORY"


def resolved_path(path: str) -> str:
    """``path`` with ``~`` expanded; a relative one begins in the run's directory where a launcher has named that."""
    return os.path.join(os.environ.get(VARIABLE, ""), os.path.expanduser(path))
