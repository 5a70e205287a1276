"""Renew the pictures of the docs: python docs/pictures/take.py [--all DIRECTORY].

With ``--all``, write every screen in every size and theme to a directory instead, to be looked at.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from textual import constants  # noqa: E402

from support.tui import fleets  # noqa: E402  (tests are no package of the project)
from support.tui.scenes import SCENES, Scene  # noqa: E402
from support.tui.screens import app_over, play  # noqa: E402

# name -> scene, size
PICTURES = {
    "fleet": (Scene(fleets.big_fleet(), (), ("j",)), (120, 30)),
    "plan": (SCENES["wizard-plan"], (100, 26)),
}
SIZES = ((80, 24), (160, 45))
# name -> theme, colours of the terminal
LOOKS = {
    "dark": ("midstream", "truecolor"),
    "light": ("paper", "truecolor"),
    "dark-256": ("midstream", "256"),
    "light-256": ("paper", "256"),
}


async def take(path: Path, scene: Scene, size: tuple[int, int], look: str = "dark") -> None:
    theme, constants.COLOR_SYSTEM = LOOKS[look]
    app = app_over(scene.snapshot, scene.actions())
    async with app.run_test(size=size) as pilot:
        app.use_theme(theme)
        await play(pilot, scene)
        path.write_text(app.export_screenshot(title="midstream"))


async def take_all(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, scene in SCENES.items():
        for size in SIZES:
            for look in LOOKS:
                await take(directory / f"{name}-{size[0]}x{size[1]}-{look}.svg", scene, size, look)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--all"]:
        asyncio.run(take_all(Path(sys.argv[2])))
    else:
        for each, (scene, size) in PICTURES.items():
            asyncio.run(take(HERE / f"{each}.svg", scene, size))
