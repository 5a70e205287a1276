"""Copy to the buffer of the tmux in which the application runs.

tmux ignores OSC 52 from applications unless its option ``set-clipboard`` is ``on``, which is not the default.
With ``-w`` it passes the buffer on to the terminal's clipboard.
"""

from __future__ import annotations

import os
import subprocess

TIMEOUT = 5.0  # seconds


def copy(text: str) -> None:
    """Set the buffer of tmux, if this process runs in tmux.

    A failure is ignored: the terminal has the text as well.
    """
    if not os.environ.get("TMUX"):
        return
    for flags in (["-w"], []):  # -w since tmux 3.2
        try:
            done = subprocess.run(
                ["tmux", "load-buffer", *flags, "-"],
                input=text.encode(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=TIMEOUT,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return
        if done.returncode == 0:
            return
