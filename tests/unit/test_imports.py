"""What may not be imported where: measured in fresh interpreters, not read off the source."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("textual", "paramiko", "google.cloud", "jax", "numpy")


def loaded_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sorted(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize("module", ["midstream.cli", "midstream_engine.records", "midstream.migrate.model"])
def test_light_modules_load_nothing_heavy(module: str):
    loaded = loaded_after(f"import {module}")
    assert not [heavy for heavy in HEAVY if heavy in loaded]


def test_the_headless_modes_load_no_screen_and_no_jax():
    loaded = loaded_after(
        "import midstream.headless, midstream.migrate.planning.plan, midstream.watch.watcher, midstream.hosts.host_pool"
    )
    assert "textual" not in loaded
    assert "jax" not in loaded


def test_the_records_need_the_standard_library_alone():
    code = "import sys, midstream_engine.records\nprint(*{name.split('.')[0] for name in sys.modules})"
    found = subprocess.run([sys.executable, "-S", "-c", "import sys\nsys.path.insert(0, 'engine')\n" + code],
                           check=True, capture_output=True, text=True, cwd=_root()).stdout.split()  # fmt: skip
    assert set(found) - set(sys.stdlib_module_names) - {"__main__", "midstream_engine"} == set()


def _root() -> str:
    from pathlib import Path

    return str(Path(__file__).parents[2])
