"""Environments of other trainers, built on each host."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from simulators.sshd import Lab
from support.command_line import Run, midstream
from support.trainers.script_runs import STEPS, claims_of
from support.trainers.script_trainer import write_script
from support.wheels import PACKAGE, uv_works, write_wheel


@pytest.mark.slow
def test_environment_of_requirements_is_built_on_each_host(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    lock = write_wheel(wheels)
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(wheels),
               "UV_OFFLINE": "1"}  # fmt: skip
    here, there = lab.host("here"), lab.host("there")
    hosts = {
        name: dataclasses.replace(server.config, python=None, env={**server.config.env, **offline})
        for name, server in (("here", here), ("there", there))
    }
    fleet = lab.fleet_file(**hosts)
    more = f"environment: {{lock: packages.txt, packages: [{PACKAGE}]}}"
    file = write_script(tmp_path / "code", steps=STEPS, every=25, more=more)
    (file.parent / "packages.txt").write_text(lock)
    script = file.parent / "train.py"
    script.write_text(f"import {PACKAGE}\nassert {PACKAGE}.VALUE == 42\n{script.read_text()}")
    launched = midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r")
    assert launched.code == 0, launched.stderr
    source, target = runs(here.root, "r"), runs(there.root, "r")
    source.wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    words = ("--fleet", fleet, "--migrate", "r", "--to", "there", "--yes", "--healthy-steps", "3", "--json")
    moved = midstream(*words)
    assert moved.code == 0, moved.stderr
    environment = claims_of(moved)["environment"]
    assert environment["verdict"] == "verified", environment
    for run in (source, target):
        status = run.status()
        assert status is not None
        assert status.versions[PACKAGE] == "1.0"
        assert list(Path(run.paths.root, "envs").glob(f"*/lib/python3*/site-packages/{PACKAGE}.py"))


@contextmanager
def index_of(wheels: Path, directory: Path) -> Iterator[str]:
    """Serve the wheel of ``wheels`` as an index of packages with hashes, on loopback; yield its address."""
    [wheel] = wheels.glob("*.whl")
    page = directory / PACKAGE.replace("_", "-")
    page.mkdir(parents=True)
    shutil.copy(wheel, page)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (page / "index.html").write_text(f'<a href="{wheel.name}#sha256={digest}">{wheel.name}</a>')

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(directory))) as index:
        thread = threading.Thread(target=index.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{index.server_port}"
        finally:
            index.shutdown()
            thread.join()


@pytest.mark.slow
@pytest.mark.skipif(not uv_works(), reason="no uv: pip install uv")
def test_environment_of_a_uv_lock_is_built_on_each_host(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    """A project is locked by uv here; each host installs exactly that, and the migration compares what they got."""
    wheels = tmp_path / "wheels"
    write_wheel(wheels)
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(wheels),
               "UV_OFFLINE": "1"}  # fmt: skip
    here, there = lab.host("here"), lab.host("there")
    hosts = {
        name: dataclasses.replace(server.config, python=None, env={**server.config.env, **offline})
        for name, server in (("here", here), ("there", there))
    }
    fleet = lab.fleet_file(**hosts)
    more = f"environment: {{lock: uv.lock, packages: [{PACKAGE}]}}"
    file = write_script(tmp_path / "code", steps=STEPS, every=25, more=more)
    (file.parent / "pyproject.toml").write_text(
        f'[project]\nname = "train"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["{PACKAGE}"]\n'
    )
    with index_of(wheels, tmp_path / "index") as address:
        words = ["uv", "lock", "--quiet", "--default-index", address]
        subprocess.run(words, cwd=file.parent, env={**os.environ, "UV_CACHE_DIR": str(tmp_path / "cache")}, check=True)
    script = file.parent / "train.py"
    script.write_text(f"import {PACKAGE}\nassert {PACKAGE}.VALUE == 42\n{script.read_text()}")
    launched = midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r")
    assert launched.code == 0, launched.stderr
    source, target = runs(here.root, "r"), runs(there.root, "r")
    source.wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    words = ("--fleet", fleet, "--migrate", "r", "--to", "there", "--yes", "--healthy-steps", "3", "--json")
    moved = midstream(*words)
    assert moved.code == 0, moved.stderr
    assert claims_of(moved)["environment"]["verdict"] == "verified"
    for run in (source, target):
        assert list(Path(run.paths.root, "envs").glob(f"*/lib/python3*/site-packages/{PACKAGE}.py"))
