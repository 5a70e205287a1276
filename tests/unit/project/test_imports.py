"""Modules that must not be imported, measured in new interpreters."""

from __future__ import annotations

import ast
import graphlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.paths import REPOSITORY

HEAVY = ("textual", "paramiko", "google.cloud", "jax", "numpy")

# Opens the terminal UI on FLEET without a terminal, and prints what is loaded when its first frame is shown.
FIRST_FRAME = """
from midstream.tui.fleet_session import UnopenedFleet
from midstream.tui.app import MidstreamApp
from midstream.tui.run_tui import run_tui
loaded = []
MidstreamApp._begin = lambda app: (loaded.extend(sys.modules), app.exit(0))
def open_hosts():
    from midstream.fleet.fleet_file import load_fleet
    from midstream.hosts.host_pool import HostPool
    return HostPool(load_fleet(FLEET))
MidstreamApp.run_alone = lambda app: app.run(headless=True, size=(160, 45))
run_tui(UnopenedFleet(FLEET, open_hosts, KNOWN))
assert loaded, "no frame was shown"
"""


def loaded_after(statement: str, loaded: str = "sys.modules") -> set[str]:
    code = f"import sys\n{statement}\nprint(*sorted({loaded}))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize("module", ["midstream.cli", "midstream_core.records", "midstream.migrate.journal.plan"])
def test_light_modules_load_nothing_heavy(module: str) -> None:
    loaded = loaded_after(f"import {module}")
    assert not [heavy for heavy in HEAVY if heavy in loaded]


@pytest.mark.long
def test_headless_modes_load_neither_textual_nor_jax() -> None:
    loaded = loaded_after(
        "from midstream import headless\nfor name in headless._MODULES: headless.mode(name)\n"
        "import midstream.migrate.planning.planner, midstream.watch.watcher, midstream.hosts.host_pool"
    )
    assert "textual" not in loaded
    assert "jax" not in loaded


def test_status_of_a_local_fleet_loads_neither_ssh_nor_google(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f"hosts: {{here: {{type: local, root: {tmp_path / 'root'}}}}}\n")
    loaded = loaded_after(f"from midstream.cli import main\nmain(['--fleet', {str(fleet)!r}, '--status', '--json'])")
    assert "midstream.watch.watcher" in loaded
    unneeded = ("_hashlib", "zipfile", "midstream.migrate.journal.journal")  # six megabytes of 28
    assert not [heavy for heavy in (*HEAVY, *unneeded) if heavy in loaded]


@pytest.mark.long
def test_screens_of_a_local_fleet_load_no_ssh() -> None:
    """paramiko, and what it needs, takes 20 MB of the terminal UI's 60."""
    loaded = loaded_after("from midstream.tui.screens import preload\npreload.load()")
    assert "midstream.tui.screens.wizard" in loaded
    assert not [heavy for heavy in ("paramiko", "cryptography", "google.cloud") if heavy in loaded]


@pytest.mark.long
@pytest.mark.parametrize("known", [True, False])
def test_first_frame_of_the_terminal_ui_loads_only_its_screen(tmp_path: Path, known: bool) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f"hosts: {{here: {{type: local, root: {tmp_path / 'root'}}}}}\n")
    kinds = {"here": "local"} if known else None
    loaded = loaded_after(f"FLEET, KNOWN = {str(fleet)!r}, {kinds}\n{FIRST_FRAME}", "loaded")
    assert known == ("midstream.fleet.fleet" not in loaded) == ("yaml" not in loaded) == ("draccus" not in loaded)
    screens = {name for name in loaded if name.startswith("midstream.tui.screens.")}
    assert {name.split(".")[3] for name in screens} == {"base", "dialogs", "fleet"}
    dialogs = {"dialog_prompter"}  # of questions of the first connections
    assert {name.split(".")[4] for name in screens if name.count(".") == 4 and "dialogs" in name} == dialogs
    rooms = {".".join(name.split(".")[:2]) for name in loaded if name.startswith("midstream.") and name.count(".") > 1}
    first = "charts hosts listing migrate tui watch" + ("" if known else " fleet")
    assert rooms == {f"midstream.{room}" for room in first.split()}
    later = {
        "midstream.check",
        "midstream.fleet.job_pods",
        "midstream.fleet.slice_check",
        "midstream.hosts.rpc",
        "midstream.hosts.ssh",
        "midstream.listing.filter_parser",
        "midstream.listing.linear_pattern",
        "midstream.json_events",
        "midstream.migrate.journal.certificate",
        "midstream.migrate.journal.downtime_report",
        "midstream.migrate.journal.plan",
        "midstream_host",
        "midstream.tui.widgets.curve",
        "midstream.watch.host_feed",
        "midstream.watch.host_log",
        "midstream_core.json_shapes",
        "midstream_core.records.manifest",
        "midstream_core.records.record",
        "numpy",
        "paramiko",
    }
    if known:
        later |= {"midstream.tui.actions", "midstream.watch.machine", "midstream.watch.system_series"}
    assert all(importlib.util.find_spec(name) for name in later), "their names"
    assert later & loaded == set()


@pytest.mark.parametrize("module", ["records", "learning_rate", "mesh_division", "object_store.open_bucket"])
def test_shared_modules_import_only_the_standard_library(module: str) -> None:
    code = f"import sys, midstream_core.{module}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    found = subprocess.run([sys.executable, "-S", "-c", "import sys\nsys.path.insert(0, 'engine')\n" + code],
                           check=True, capture_output=True, text=True, cwd=_root()).stdout.split()  # fmt: skip
    assert set(found) - set(sys.stdlib_module_names) - {"__main__", "midstream_core"} == set()


@pytest.mark.long
def test_no_import_circles_even_within_functions() -> None:
    """An import within a function, or for the type checker alone, hides a circle and does not break it."""
    needed: dict[str, set[str]] = {}
    for module, other in imports():
        needed.setdefault(module, set()).add(other)
    graphlib.TopologicalSorter(needed).prepare()  # raises CycleError


def imports() -> Iterator[tuple[str, str]]:
    """Yield (module, imported module) of the app and the engine, wherever the import is."""
    files = {path for folder in ("app", "engine") for path in Path(_root(), folder).rglob("*.py")}
    modules = {
        ".".join(path.relative_to(_root()).with_suffix("").parts[1:]).removesuffix(".__init__"): path for path in files
    }
    for module, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                below = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                below = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in below:
                found = name if name in modules else name.rpartition(".")[0]
                if found in modules and found != module:
                    yield module, found


def _root() -> str:
    return str(REPOSITORY)
