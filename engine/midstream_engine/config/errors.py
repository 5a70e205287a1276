"""The one error of this package."""

from __future__ import annotations


class ConfigError(ValueError):
    """The configuration is wrong. One line that says where and what to do; the program exits 2 with it."""
