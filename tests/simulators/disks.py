"""Small file systems, for tests that fill them."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

# Unmounts when its standard input ends: after the test, or when the test's process has exited for any reason.
KEEPER = 'trap "" INT TERM HUP; read -r _; exec umount -l "$0"'


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[bool]:
    """Context with a file system of ``size`` (as for tmpfs) at ``place``, which is created.

    Yields False, with a plain directory, if this process may not mount one: that takes root and CAP_SYS_ADMIN.
    """
    place.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "midstream-test", str(place)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        yield False
        return
    with subprocess.Popen(["sh", "-c", KEEPER, str(place)], stdin=subprocess.PIPE, start_new_session=True) as keeper:
        assert keeper.stdin is not None
        try:
            yield True
        finally:
            keeper.stdin.close()
            assert keeper.wait(60) == 0, f"{place} is still mounted"
