"""Export of runs to Levanter: an import and an export give Levanter's own arrays back, bit by bit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from midstream_engine.convert import main
from midstream_engine.interop.levanter.arrays import open_arrays
from support.paths import FIXTURES

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
LEVANTER = FIXTURES / "levanter"


@pytest.fixture
def imported(tmp_path: Path) -> Callable[..., Path]:
    """Import a fixture, whose configuration may be changed first."""

    def convert(name: str, *changes: tuple[str, str]) -> Path:
        source, target = tmp_path / f"{name}-source", tmp_path / f"{name}-run"
        shutil.copytree(LEVANTER / name, source)
        config = source / "config.yaml"
        text = config.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        config.write_text(text)
        assert main([str(source), str(target)]) == 0
        return target

    return convert


@pytest.mark.parametrize(("name", "form"), [("llama", "levanter"), ("gpt2", "levanter-1-2"), ("rms", "levanter")])
def test_every_array_comes_back(name: str, form: str, imported: Callable[..., Path], tmp_path: Path) -> None:
    run, target = imported(name), tmp_path / "out"
    assert main([str(run), str(target), "--to", form]) == 0
    (folder,) = target.glob("step-*")
    metadata = json.loads((folder / "metadata.json").read_text())
    assert (folder.name, metadata["step"]) == ("step-2", 2)  # its trainer's name after three updates
    kind, found = open_arrays(str(folder))
    assert kind == ("A" if form.endswith("1-2") else "B")
    expected = open_arrays(str(LEVANTER / name / "step-3"))[1]
    assert found.keys() == expected.keys()
    for array, stored in expected.items():
        assert found[array].dtype == stored.dtype
        np.testing.assert_array_equal(found[array].read(), stored.read(), array)
    again = tmp_path / "again"
    assert main([str(target), str(again)]) == 0
    digests = [
        json.loads(next(Path(each).glob("checkpoints/*/manifest.json")).read_text())["objects"] for each in (run, again)
    ]
    states = [{entry["path"]: entry["sha256"] for entry in each if entry["path"] != "train.json"} for each in digests]
    assert states[0] == states[1]


def test_what_levanter_has_not_is_named(
    imported: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refusal(run: Path, form: str) -> str:
        assert main([str(run), str(tmp_path / "out"), "--to", form]) == 1
        assert not list(tmp_path.glob("out*"))
        return capsys.readouterr().err.splitlines()[-1]

    assert "optimizer.clip_update_norm" in refusal(imported("clipped"), "levanter")
    schedule = ("warmup: 2", "warmup: 2\n  decay: 1.0")
    assert "learning rate of update" in refusal(imported("llama", schedule), "levanter-1-2")
