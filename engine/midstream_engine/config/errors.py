"""The error of this package."""

from __future__ import annotations

from midstream_engine.printable import printable


class ConfigError(ValueError):
    """Error in the configuration.

    The message is one line with place and remedy; the program exits with 2.
    """

    def __str__(self) -> str:
        return printable(super().__str__())
