"""Import of the screens that are opened most, once the first frame is shown.

Opening them then takes no longer.

The fleet screen imports a screen when it opens it, so that the first frame does not wait for all of them.
"""

from __future__ import annotations

import importlib
import sys
import time

SCREENS = (
    "midstream.tui.screens.run_screen",
    "midstream.listing.filter_parser",
    "midstream.tui.screens.dialogs.help",
    "midstream.tui.screens.wizard",
    "midstream.tui.screens.migration_screen",
    "midstream.tui.screens.dialogs.document",
    "midstream.tui.screens.launch_form",
    "midstream.tui.screens.fleet.verify_screen",
)
PAUSE = 0.05  # seconds between two screens, in which keys are answered: an import holds the interpreter


def load() -> None:
    """Import the screens. Call it in the background."""
    for screen in SCREENS:
        if screen not in sys.modules:  # as after a restart of the application in the same process
            time.sleep(PAUSE)
            importlib.import_module(screen)
