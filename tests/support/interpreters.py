"""Interpreters that an SSH server of a test has started."""

from __future__ import annotations

import subprocess
import sys


def interpreters_below(pid: int) -> list[int]:
    """Return the process numbers of the interpreters that an SSH server has started."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    below, found = {pid}, list[int]()
    for line in sorted(listed.splitlines(), key=lambda line: int(line.split()[0])):  # parents before their children
        child, parent, command = line.split(None, 2)
        if int(parent) in below:
            below.add(int(child))
            if f"{sys.executable} -I" in command:
                found.append(int(child))
    return found
