"""Takes the pictures of docs/tui.md anew: python docs/pictures/take.py"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from tui import worlds  # noqa: E402  (tests are no package of the project)
from tui.looking import app_over, settle  # noqa: E402
from tui.worlds import Answers  # noqa: E402

PICTURES = {
    "fleet": (worlds.big_fleet(), (), (120, 30), ("j",)),
    "run": (worlds.small_fleet(worlds.moved_run()), (), (140, 36), ("enter",)),
    "plan": (worlds.small_fleet(), (), (100, 26), ("m",)),
    "certificate": (worlds.moved_fleet(), (worlds.certified(),), (110, 32), ("3", "enter")),
}


async def take(name: str) -> None:
    snapshot, migrations, size, keys = PICTURES[name]
    app = app_over(snapshot, Answers(*migrations))
    async with app.run_test(size=size) as pilot:
        await settle(pilot, lambda: app.world.migrations == migrations)
        for key in keys:
            await pilot.press(key)
            await settle(pilot)
        (HERE / f"{name}.svg").write_text(app.export_screenshot(title="midstream"))


if __name__ == "__main__":
    for each in PICTURES:
        asyncio.run(take(each))
