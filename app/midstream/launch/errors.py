"""Why an engine could not be put on a host, or did not come up."""

from __future__ import annotations

from midstream.errors import MidstreamError


class LaunchError(MidstreamError):
    """``log`` holds the last lines that the engine wrote, where it came so far."""

    def __init__(self, message: str, hint: str = "", log: tuple[str, ...] = ()):
        super().__init__(message, hint)
        self.log = log
