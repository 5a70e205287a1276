"""The wheel: built, installed in an environment of its own, and used from another directory."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from support.paths import CONFIGS, REPOSITORY

NAMES = {path.name for path in CONFIGS.glob("*.yaml")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [built] = directory.glob("midstream-*.whl")
    return built


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel in an environment that has the packages of this one; return its midstream."""
    environment = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    done = subprocess.run([*pip, str(wheel)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [site] = environment.glob("lib/python*/site-packages")
    # Behind the wheel's packages; the path files of this environment, which name the sources, are not read.
    (site / "packages.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return environment / "bin" / "midstream"


def run(program: Path, *arguments: object, home: Path) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MIDSTREAM_", "PYTHON"))}
    command = [str(program), *map(str, arguments)]
    return subprocess.run(command, cwd=home, env={**env, "HOME": str(home)}, capture_output=True, text=True)


def test_wheel_has_configs_and_locks(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"midstream/_shipped/configs/{name}" for name in NAMES} <= names
    assert {f"midstream/_shipped/locks/{name}" for name in ("engine-cpu.txt", "sizes.json", "python.json")} <= names
    assert "midstream_engine/check_config.py" in names


def test_installed_wheel_finds_its_configs_from_any_directory(program: Path, tmp_path: Path) -> None:
    assert run(program, "--version", home=tmp_path).stdout.startswith("midstream ")
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f'hosts: {{here: {{type: local, devices: 2, root: "{tmp_path}/root"}}}}\n')
    launch = ("--fleet", fleet, "--on", "here", "--launch")
    small = run(program, *launch, "configs/gpt2_small.yaml", home=tmp_path)
    assert small.returncode == 2
    file = tmp_path / "data/gpt2/tokenizer.json"
    hint = "copy a Hugging Face tokenizer.json there, or -- --data.tokenizer bytes"
    assert small.stderr == f"midstream: data.tokenizer on here: {file}: No such file or directory ({hint})\n"
    wrong = run(program, *launch, "configs/gpt2_nano.yaml", "--", "--model.hiden_dim", "8", home=tmp_path)
    assert wrong.returncode == 2
    assert "unknown key model.hiden_dim; nearest: model.hidden_dim" in wrong.stderr
    assert not (tmp_path / "root").exists(), "nothing is installed"
