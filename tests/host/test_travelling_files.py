"""Trees of a trainer's files, made by two starts at the same time."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from midstream_host.trainers import travelling_files


def test_two_starts_make_one_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, store = tmp_path / "code", tmp_path / "root" / "data"
    code.mkdir()
    (code / "train.py").write_text("print()\n")
    real, both = travelling_files.shutil.rmtree, threading.Barrier(2)

    def remove(path: str, **more: Any) -> None:
        real(path, **more)
        if not Path(path).name.startswith("."):  # the tree's place, which is empty now
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.5)

    monkeypatch.setattr(travelling_files.shutil, "rmtree", remove)
    with ThreadPoolExecutor() as pool:
        starts = [pool.submit(travelling_files.snapshot, str(store.parent), str(code), ["*.py"]) for _ in range(2)]
        first, second = (each.result(60) for each in starts)
    assert first == second
    assert [path.name for path in store.iterdir() if not path.name.startswith(".")] == [first.digest]
    assert not list(store.glob(".files-*"))


def test_trainer_that_writes_beside_its_code_has_its_files(tmp_path: Path) -> None:
    """With ``out: .`` nothing travelled, without a word."""
    code = tmp_path / "code"
    (code / "logs").mkdir(parents=True)
    for name in ("train.py", "model.py", "logs/old.py"):
        (code / name).write_text("print()\n")
    for leave, expected in (["."], 3), (["logs"], 2), ([".", "logs"], 2):
        assert travelling_files.snapshot(str(tmp_path / "root"), str(code), ["**/*.py"], leave).files == expected
