"""Request for the start of a run, from the command line or the terminal UI."""

from __future__ import annotations

import shlex
from dataclasses import dataclass


@dataclass(frozen=True)
class LaunchRequest:
    """The flags of `midstream --launch` or `--restart`.

    Without ``config``, the next attempt of a run that has stopped on the target is started.
    """

    target: str
    config: str | None = None
    run_id: str | None = None
    overrides: tuple[str, ...] = ()  # engine flags
    agreed: bool = False  # to a start that needs consent (`--yes`)

    def command(self, fleet_file: str = "") -> str:
        """Return the command line that does the same as this request.

        ``fleet_file`` is empty for the default one.
        """
        fleet = ["--fleet", fleet_file] if fleet_file else []
        if self.config is None and self.run_id is not None:
            words = ["midstream", *fleet, "--restart", self.run_id]
        else:
            words = ["midstream", *fleet, "--launch", self.config or "CONFIG", "--on", self.target]
            words += ["--run-id", self.run_id] if self.run_id else []
        return shlex.join([*words, *(("--", *self.overrides) if self.overrides else ())])
