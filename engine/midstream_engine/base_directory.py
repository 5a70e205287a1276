"""Base directory of the relative paths in a configuration.

A launched engine starts in an empty directory of its own, because Python and other programs read modules and settings
from the working directory. Its launcher sets ``$MIDSTREAM_RUN_DIRECTORY``, and relative paths are resolved against it.
Without the variable they are resolved against the working directory.
"""

from __future__ import annotations

import os

VARIABLE = "MIDSTREAM_RUN_DIRECTORY"


def resolved_path(path: str) -> str:
    """Expand ``~`` and resolve a relative path against the run's directory, if any."""
    return os.path.join(os.environ.get(VARIABLE, ""), os.path.expanduser(path))
