"""Progress of installers: what pip and uv print, as one state."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from io import StringIO

import pytest

from midstream.bundled_files import shipped
from midstream.install.install_progress import InstallProgress, read_sizes, wheel_sizes
from midstream.install.reporter import SparseReporter, reporter_of
from midstream.launch.progress_line import ProgressLine
from support.paths import REPOSITORY

OTHERS = (
    "kubectl.txt",
    "skypilot.txt",
    "trainers.txt",
    "levanter.txt",
    "maxtext.txt",
    "torchtitan.txt",
)  # for tests alone: installed by pip, on no host
LOCK = """\
click==8.5.1 \\
    --hash=sha256:aa
colorama==0.4.6 ; sys_platform == 'win32' \\
    --hash=sha256:bb
jaxlib==0.10.2 \\
    --hash=sha256:cc
scipy==1.17.1 ; python_full_version < '3.12' \\
    --hash=sha256:dd
scipy==1.18.1 ; python_full_version >= '3.12' \\
    --hash=sha256:ee
"""
SIZES = {"click==8.5.1": 5_000_000, "jaxlib==0.10.2": 70_000_000, "scipy==1.17.1": 25_000_000, "scipy==1.18.1": 1}
PIP = """\
Collecting click==8.5.1 (from -r requirements.txt (line 1))
  Downloading click-8.5.1-py3-none-any.whl.metadata (3 kB)
  Downloading click-8.5.1-py3-none-any.whl (5 MB)
Collecting jaxlib==0.10.2 (from -r requirements.txt (line 5))
  Downloading jaxlib-0.10.2-cp311-cp311-manylinux_2_27_x86_64.whl (70 MB)
Processing /wheels/scipy-1.17.1-cp311-cp311-manylinux2014_x86_64.whl (from -r requirements.txt (line 7))
Installing collected packages: jaxlib, scipy, click
Successfully installed click-8.5.1 jaxlib-0.10.2 scipy-1.17.1
"""
UV = """\
Resolved 3 packages in 12ms
Downloading jaxlib (66.8MiB)
Downloading scipy (23.8MiB)
 Downloaded scipy
 Downloaded jaxlib
Prepared 3 packages in 8.67s
Installed 3 packages in 680ms
 + click==8.5.1
"""


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def states(output: str) -> list[str]:
    """Return the states that the output leads to; each line takes two seconds."""
    clock = Clock()
    progress = InstallProgress(LOCK, SIZES, clock)
    found = [str(progress.state)]
    for line in output.splitlines():
        clock.seconds += 2.0
        if progress.read(line):
            found.append(f"{progress.state} {progress.state.seconds_left or 0:.0f}")
    return found


def test_output_of_pip() -> None:
    assert states(PIP) == [
        "preparing 3 packages, 100 MB",
        "downloading 3 packages, 100 MB: 0%, click 0",
        "downloading 3 packages, 100 MB: 5%, jaxlib 0",
        "downloading 3 packages, 100 MB: 75%, scipy 12",
        "unpacking 3 packages, 100 MB 8",
    ]


def test_output_of_uv() -> None:
    assert states(UV) == [
        "preparing 3 packages, 100 MB",
        "downloading 3 packages, 100 MB: 0%, jaxlib 0",
        "downloading 3 packages, 100 MB: 0%, scipy 0",
        "downloading 3 packages, 100 MB: 25%, jaxlib 32",
        "downloading 3 packages, 100 MB: 95% 9",
        "unpacking 3 packages, 100 MB 8",
    ]


def test_size_of_foreign_packages_is_not_counted() -> None:
    assert wheel_sizes(LOCK, SIZES) == {"click": 5_000_000, "jaxlib": 70_000_000, "scipy": 25_000_000}


@pytest.mark.parametrize(
    "lock", sorted(path.name for path in (REPOSITORY / "locks").glob("*.txt") if path.name not in OTHERS)
)
def test_size_of_every_locked_package_is_known(lock: str) -> None:
    sizes = wheel_sizes(shipped(f"locks/{lock}").read_text(), read_sizes(shipped("locks/sizes.json")))
    assert [name for name, size in sizes.items() if not size] == [], "run make lock"


@pytest.mark.parametrize(("script", "code"), [("echo Resolved; exit 3", 3), ("echo Resolved", 0)])
def test_installer_of_a_clone_needs_no_package(script: str, code: int) -> None:
    """Output is shown after a failure alone. -S: without installed packages."""
    progress, lock = REPOSITORY / "locks" / "progress", REPOSITORY / "locks" / "demo.txt"
    command = [sys.executable, "-S", "-P", str(progress), str(lock), "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == code, done.stderr
    first, *rest = done.stderr.splitlines()
    assert re.fullmatch(r"installing: preparing \d+ packages, \d+ MB", first)
    assert rest == (["Resolved"] if code else [])


def pins(lock: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([a-z0-9._-]+)==([^ ;\\]+)", shipped(f"locks/{lock}.txt").read_text(), re.M):
        found.setdefault(name, set()).add(version)
    return found


def test_demo_lock_is_engine_and_app_at_the_versions_of_dev() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    demo, dev = pins("demo"), pins("dev")
    wanted = [*project["dependencies"]]
    for extra in ("engine", "editable"):
        wanted += project["optional-dependencies"][extra]
    assert {re.split(r"[=<>\[]", each)[0] for each in wanted} <= demo.keys()
    assert {name: versions for name, versions in demo.items() if dev.get(name) != versions} == {}
    assert demo.keys() >= pins("app").keys() | pins("engine-cpu").keys()
    assert not demo.keys() & {"pytest", "pyright", "wandb", "pyarrow", "mkdocs"}, "not the development lock"


def test_without_terminal_lines_are_sparse() -> None:
    lines: list[str] = []
    clock = Clock()
    report = SparseReporter(lines.append, clock=clock)
    for second in range(61):
        clock.seconds = float(second)
        report.update("lab", f"downloading {second}", 90.4 - second)
        report.detail("Collecting jax")
    report("done")
    assert lines == [
        "lab: downloading 0, about 90s left",
        "lab: downloading 30, about 60s left",
        "lab: downloading 60, about 30s left",
        "done",
    ]
    assert reporter_of(report) is report


def test_verbose_shows_output() -> None:
    lines: list[str] = []
    SparseReporter(lines.append, verbose=True).detail("Collecting jax")
    assert lines == ["Collecting jax"]


def test_at_terminal_one_line_is_redrawn() -> None:
    terminal = StringIO()
    report = ProgressLine(terminal)
    report("engine installed")
    report.update("lab", "preparing 3 packages")
    report.update("rented", "downloading\x1b[2J", 300.0)
    report("attempt 1 runs")
    report.end("lab")
    report.end("rented")
    shown = terminal.getvalue().split("\r\x1b[K")
    assert shown[0] == "engine installed\n"
    assert "lab: preparing 3 packages" in shown
    assert "lab: preparing 3 packages; rented: downloading\\x1b[2J, about 5m left" in shown
    assert "attempt 1 runs\n" in shown
    assert shown[-1] == "", "the line is removed at the end"
