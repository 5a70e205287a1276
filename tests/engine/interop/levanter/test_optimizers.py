"""Import of the state of Levanter's optimizers: the next updates have Levanter's losses, and the same average.

The fixtures were made with marin-levanter by tests/fixtures/levanter/generate_optimizers.py, on a CPU.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts

from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.levanter.importer import open_levanter
from support.imports import imported_runs
from support.paths import FIXTURES

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
OPTIMIZERS = FIXTURES / "levanter" / "optimizers"


def expected(name: str) -> dict[str, Any]:
    return json.loads((OPTIMIZERS / name / "expected.json").read_text())


@pytest.mark.drawn
def test_skip_step_window_and_average_are_continued() -> None:
    """Before the checkpoint one of six updates was skipped; one of the next is skipped, too."""
    wanted = expected("skipstep")
    run = open_levanter(str(OPTIMIZERS / "skipstep"))
    arrays = {array.name: array.value() for array in run.arrays}
    assert (arrays["optimizer/adam/count"], arrays["optimizer/schedule/count"]) == (5, 6)
    assert (arrays["optimizer/skipstep/skipped"], arrays["optimizer/skipstep/seen"]) == (1, 6)
    losses, state = imported_runs.continued_state(run, wanted["tokens"])
    np.testing.assert_allclose(losses, wanted["losses"], rtol=1e-5)
    assert int(state.optimizer["skipstep"].skipped) == 2
    assert state.average is not None
    sums = sorted(float(np.abs(np.asarray(leaf)).sum()) for leaf in imported_runs.leaves(state.average.model))
    np.testing.assert_allclose(sums, sorted(wanted["average"].values()), rtol=1e-5)


def test_fields_that_levanter_never_reads_are_left_out(tmp_path: Path) -> None:
    shutil.copytree(OPTIMIZERS / "cautious", tmp_path / "x")
    text = (tmp_path / "x" / "config.yaml").read_text()
    (tmp_path / "x" / "config.yaml").write_text(
        text.replace("  type: cautious\n", "  type: cautious\n  gamma: 0.025\n")
    )
    run = open_levanter(str(tmp_path / "x"))
    assert "gamma" not in run.mapping["optimizer"]
    assert not [note for note in run.notes if "gamma" in note]


def rewritten(folder: Path, name: str, change: dict[str, Any]) -> Path:
    """Copy a fixture and write other contents into arrays of its checkpoint."""
    shutil.copytree(OPTIMIZERS / name, folder)
    base = {"driver": "file", "path": f"{folder}/step-6/"}
    for array, value in change.items():
        store = {"driver": "zarr3", "kvstore": {"driver": "ocdbt", "base": base, "path": f"{array}/"}}
        ts.open(store).result().write(value).result()
    return folder


def test_unusable_skip_step_windows_are_refused_by_name(tmp_path: Path) -> None:
    window = "opt_state/inner_state/_skipstep_losses"
    nan = rewritten(tmp_path / "nan", "skipstep", {window: np.array([1, np.nan, 1, 1], np.float32)})
    with pytest.raises(ConversionError, match="_skipstep_losses: holds a value that is not finite"):
        open_levanter(str(nan))
    counts = rewritten(tmp_path / "counts", "skipstep", {"opt_state/inner_state/1/count": np.int32(7)})
    with pytest.raises(ConversionError, match="6 steps, 7 updates of the optimizer"):
        open_levanter(str(counts))
    for old, new, words in (
        ("length: 4", "length: 8", "4 values, but optimizer.skip_bad_steps has a window of 8"),
        ("  skip_bad_steps:\n    rolling_interval_length: 4\n    sigma_factor: 3.0\n", "", "unused: .*_skipstep_count"),
        ("  model_averaging:\n    type: ema\n    beta: 0.8\n", "", "unused: model_averaging/model/embeddings"),
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        shutil.copytree(OPTIMIZERS / "skipstep", folder)
        text = (folder / "config.yaml").read_text()
        assert old in text
        (folder / "config.yaml").write_text(text.replace(old, new))
        with pytest.raises(ConversionError, match=words):
            open_levanter(str(folder))


def test_missing_skip_step_window_and_average_are_named(tmp_path: Path) -> None:
    for line, words in (
        ("trainer:\n  model_averaging: {type: ema}\n", "missing: model_averaging/model/"),
        ("optimizer:\n  skip_bad_steps: true\n", "has no .*_skipstep_losses, which optimizer.skip_bad_steps needs"),
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        shutil.copytree(OPTIMIZERS.parent / "llama", folder)
        text = (folder / "config.yaml").read_text()
        (folder / "config.yaml").write_text(text.replace(line.partition("\n")[0] + "\n", line))
        with pytest.raises(ConversionError, match=words):
            open_levanter(str(folder))


@pytest.mark.parametrize(
    "name",
    [
        "lion-plain",
        *(pytest.param(name, marks=pytest.mark.drawn) for name in ("adopt", "cautious", "lion", "muon", "muon-kimi")),
    ],
)
def test_next_updates_have_levanters_losses(name: str) -> None:
    """With clipping and decay; lion-plain without. The Muons have different iterations, scalings and momentums."""
    wanted = expected(name)
    run = open_levanter(str(OPTIMIZERS / name))
    np.testing.assert_allclose(imported_runs.continued(run, wanted["tokens"]), wanted["losses"], rtol=1e-5)
