"""Warnings of libraries are no output of midstream."""

from __future__ import annotations

import subprocess
import sys

IMPORTS = """
import sys
sys.modules["socks"] = None  # PySocks is not installed
import midstream
try:
    import urllib3.contrib.socks  # as requests does, after another thread has restored the filters
except ImportError:
    print("imported")
"""


def test_missing_socks_support_is_not_reported() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("imported\n", "")
