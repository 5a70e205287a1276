"""The migration that the flags request."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from midstream.migrate.journal.request import Request


def is_path(text: str) -> bool:
    """Return True if the argument of ``--migrate`` is a path.

    Run ids have neither slash nor colon.
    """
    return "/" in text or ":" in text


def request_of(options: argparse.Namespace, run_id: str, source: str, engine: tuple[str, ...]) -> Request:
    """Return the migration request of the flags."""
    from midstream.migrate.journal.request import Request
    from midstream.migrate.modes.registry import WARM

    return Request(
        run_id=run_id,
        source=source,
        target=options.to,
        mode=options.mode or WARM,
        checkpoint=options.checkpoint,
        source_lost=options.source_lost,
        certify_steps=options.certify_steps,
        healthy_steps=options.healthy_steps,
        overrides=engine,
    )
