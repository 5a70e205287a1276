"""Import of MaxText's checkpoints: the next updates have its losses, and every array comes back.

The fixture is of MaxText 0.2.5 on two devices (tests/fixtures/maxtext/generate.py);
norms and the embedding do not decay.
"""

from __future__ import annotations

import dataclasses
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from midstream_core.learning_rate import rate_at, rate_parts, rate_settings
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_engine.convert import main, recognise
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.exported_run import open_run
from midstream_engine.interop.exporters import ExportOptions
from midstream_engine.interop.foreign_run import ForeignRun
from midstream_engine.interop.maxtext import exporter
from midstream_engine.interop.maxtext.configuration import (
    NEEDED,
    neighbours,
    plain_settings,
    rate_of,
    read_config,
    translate,
)
from midstream_engine.interop.maxtext.importer import open_maxtext
from midstream_engine.interop.maxtext.names import ArrayRule
from midstream_engine.interop.maxtext.orbax import OrbaxCheckpoint
from support.imports import imported_runs
from support.paths import FIXTURES

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
MAXTEXT = FIXTURES / "maxtext"
LOG = str(MAXTEXT / "train.log")
STEP = Path("checkpoints", "2")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A run's folder with its checkpoint."""
    folder = tmp_path / "theirs"
    with tarfile.open(MAXTEXT / "checkpoint.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def exported(source: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Path, str]:
    """Import and export; return the folder and what was printed."""
    run, target = source.parent / "run", source.parent / "out"
    assert main([str(source), str(run), "--config", LOG]) == 0
    assert main([str(run), str(target), "--to", "maxtext"]) == 0
    return target, capsys.readouterr().err


def refusal(source: Path, capsys: pytest.CaptureFixture[str], config: str = LOG) -> str:
    """Convert, which fails with one line and leaves nothing."""
    target = source.parent / "out"
    assert main([str(source), str(target), "--config", config]) == 1
    assert not list(source.parent.glob("out*"))
    *_, line = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.drawn
def test_next_updates_have_maxtexts_losses(source: Path) -> None:
    expected = json.loads((MAXTEXT / "expected.json").read_text())
    losses = imported_runs.continued(open_maxtext(str(source), LOG), expected["tokens"])
    np.testing.assert_allclose(losses, expected["losses"], rtol=1e-6)


def test_every_array_comes_back_bit_by_bit(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert recognise(str(source)) == recognise(str(source / STEP)) == "maxtext"
    target, messages = exported(source, capsys)
    assert "arrays in items have no checksum" in messages
    assert "states of random generators are left out" in messages
    checkpoint = source.parent / "run" / "checkpoints" / "step-3-a000"
    assert verify_checkpoint(str(checkpoint)).sound
    state = json.loads((checkpoint / "train.json").read_text())["state"]
    assert (state["step"], state["schedule_count"], state["next_sample"]) == (3, 3, 12)
    expected, found = (OrbaxCheckpoint(str(folder / STEP)).arrays for folder in (source, target))
    assert found.keys() == {name for name in expected if not name.startswith("nnx_aux.")}
    for name, array in found.items():
        assert (array.shape, array.dtype) == (expected[name].shape, expected[name].dtype), name
        assert array.read().tobytes() == expected[name].read().tobytes(), name
    same_arrays(open_maxtext(str(target)), open_maxtext(str(source), LOG))


def same_arrays(found: ForeignRun, expected: ForeignRun) -> None:
    assert found.step == expected.step
    for section in ("model", "optimizer"):
        assert found.mapping[section] == expected.mapping[section]
    for array, other in zip(found.arrays, expected.arrays, strict=True):
        np.testing.assert_array_equal(array.value(), other.value(), array.name)


def test_settings_that_are_not_read_are_named(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {name: value for name, value in read_config(str(source), LOG).items() if name in NEEDED}
    path = tmp_path / "maxtext.yml"

    def refused(**changes: Any) -> str:
        changed = {name: value for name, value in (settings | changes).items() if value != "left out"}
        path.write_text(yaml.safe_dump(json.loads(json.dumps(changed, default=str))))
        return refusal(source, capsys, str(path))

    assert "decoder_block: gemma2" in refused(decoder_block="gemma2")
    assert "opt_type: 'adam_pax' has no counterpart" in refused(opt_type="adam_pax")
    assert "lacks learning_rate, adam_b2 (hint" in refused(learning_rate="left out", adam_b2="left out")
    assert "rope_type: yarn" in refused(rope_type="yarn")
    assert "normalize_embedding_logits" in refused(logits_via_embedding=True)
    assert "misshapen" in refused(param_scan_axis=0)
    assert "adamw_mask: ['(']" in refused(adamw_mask=["("])
    assert "the run's configuration is missing" in refusal(source, capsys, str(tmp_path / "nothing.log"))
    path.write_text("[")
    assert "maxtext.yml: cannot be read" in refusal(source, capsys, str(path))


def test_damaged_and_missing_parts_are_named(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = source / STEP / "items"

    def edited(path: Path, edit: Callable[[bytes], bytes | None]) -> str:
        original = path.read_bytes()
        changed = edit(original)
        path.unlink() if changed is None else path.write_bytes(changed)
        line = refusal(source / STEP, capsys)
        path.write_bytes(original)
        return line

    assert "_METADATA: missing" in edited(items / "_METADATA", lambda _: None)
    assert "_METADATA: not JSON, perhaps cut off" in edited(items / "_METADATA", lambda data: data[:-9])
    foreign = edited(items / "_METADATA", lambda data: data.replace(b'"wi_0"', b'"wi_7"'))
    assert "names arrays that are missing" in foreign
    assert "wi_7.kernel" in foreign
    manifest = items / "manifest.ocdbt"
    assert "cannot be read" in edited(manifest, lambda data: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])
    largest = max((items / "ocdbt.process_0" / "d").iterdir(), key=lambda path: path.stat().st_size)
    assert "cannot be read" in edited(largest, lambda _: None)
    assert "cannot be read" in edited(largest, lambda data: data[: len(data) // 2])
    (source / STEP / "commit_success.txt").unlink()
    commit = source / STEP / "_CHECKPOINT_METADATA"
    changed = json.loads(commit.read_text()) | {"commit_timestamp_nsecs": None}
    assert "no time of the commit" in edited(commit, lambda _: json.dumps(changed).encode())


def test_missing_chunk_and_missing_optimizer_are_named(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import tensorstore

    items = exported(source, capsys)[0] / STEP / "items"
    store = tensorstore.KvStore.open({"driver": "ocdbt", "base": f"file://{items}/"}).result()
    (chunk, *_) = [key for key in store.list().result() if b"nu.params.token_embedder.embedding/c" in key]
    store[chunk] = None
    with pytest.raises(ConversionError, match=r"nu\.params\.token_embedder\.embedding has 0 of 1 chunks"):
        OrbaxCheckpoint(str(items.parent))
    tree = json.loads((items / "_METADATA").read_text())
    tree["tree_metadata"] = {name: leaf for name, leaf in tree["tree_metadata"].items() if "'nu'" not in name}
    (items / "_METADATA").write_text(json.dumps(tree))
    with pytest.raises(ConversionError, match="the state of AdamW is missing"):
        open_maxtext(str(items.parent), LOG)


def test_state_that_maxtext_has_not_is_named(source: Path) -> None:
    run, target = source.parent / "run", source.parent / "out"
    assert main([str(source), str(run), "--config", LOG]) == 0

    def refused(section: str, **changes: object) -> str:
        config = open_run(str(run))
        changed = dataclasses.replace(getattr(config.config, section), **changes)
        other = dataclasses.replace(config, config=dataclasses.replace(config.config, **{section: changed}))
        with pytest.raises(ConversionError) as caught:
            exporter.export(other, str(target), ExportOptions())
        assert not target.exists()
        return str(caught.value)

    assert "optimizer.nesterov: True here" in refused("optimizer", nesterov=True)
    assert "linear or cosine" in refused("optimizer", lr_schedule="inv_sqrt")
    assert "learning rate of update 4" in refused("optimizer", cosine_exponent=2.0)
    assert "model.has_mlp_bias" in refused("model", mlp_bias=True)
    for form in ("huggingface", "torch-dcp", "levanter", "neox"):  # scores are not scaled in MaxText's llama2
        assert main([str(run), str(target), "--to", form]) == 1
        assert not target.exists()


def test_rates_are_maxtexts() -> None:
    """The formula is MaxText's at every update, and ours where a schedule is accepted."""
    for case in json.loads((MAXTEXT / "schedules.json").read_text()):
        settings = read_config(".", LOG) | plain_settings(case["settings"])
        theirs = [rate_of(settings)(count) for count in range(settings["steps"])]
        np.testing.assert_allclose(theirs, case["rates"], atol=1e-7, err_msg=str(case["settings"]))
        mapping = translate(settings, {}, [])
        total = mapping["trainer"]["num_train_steps"]
        parts = rate_parts(rate_settings(mapping["optimizer"]), total)
        ours = [rate_at(parts, count) for count in range(min(total, settings["steps"]))]
        np.testing.assert_allclose(ours, theirs[: len(ours)], atol=1e-12, err_msg=str(case["settings"]))


def test_neighbours_of_a_head_become_halves() -> None:
    logged = read_config(".", LOG) | plain_settings({"rope_type": "RopeType.LLAMA3_1"})
    assert neighbours(logged)
    assert translate(logged, {}, [])["model"]["rope"]["type"] == "llama3"
    rule = ArrayRule("", "", turned=True)
    heads = np.arange(16).reshape(1, 2, 8)
    np.testing.assert_array_equal(rule.to_ours(heads)[0, 0], [0, 2, 4, 6, 1, 3, 5, 7])
    np.testing.assert_array_equal(rule.to_theirs(rule.to_ours(heads)), heads)
