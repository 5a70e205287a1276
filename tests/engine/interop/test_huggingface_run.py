"""Import of a Hugging Face model as a run before its first update."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from midstream_core import records
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_engine.convert import main
from support.paths import FIXTURES

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
SOURCE = FIXTURES / "hf" / "llama3-tied"
TOKENIZER = FIXTURES / "levanter" / "data" / "tokenizer"


def convert(folder: Path, *flags: str) -> int:
    return main([str(SOURCE), str(folder / "b"), "--run-id", "tiny", "--root", str(folder / "root"), "--", *flags])


def test_model_becomes_a_run_with_the_data_of_flags(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(" ".join(str(7 * number % 63) for number in range(3000)))
    flags = [
        "--data.train_urls", f"[{tmp_path}/text.txt]", "--data.tokenizer", str(TOKENIZER), "--data.eos_token", "<end>",
        "--trainer.num_train_steps", "8", "--trainer.train_batch_size", "4",
    ]  # fmt: skip
    assert convert(tmp_path, *flags) == 0
    paths = records.RunPaths(str(tmp_path / "root"), "tiny")
    checkpoint = paths.checkpoint(records.checkpoint_name(0, 1))
    assert verify_checkpoint(checkpoint).sound
    train = json.loads(Path(checkpoint, "train.json").read_text())
    _, carried = records.data_digests(train)
    assert set(os.listdir(tmp_path / "root" / "data")) == {train["state"]["data_digest"], carried}
    assert set(os.listdir(tmp_path / "root" / "data" / carried)) == {records.MANIFEST, *os.listdir(TOKENIZER)}
    status = records.Status.read(paths.attempt(1).status())
    assert [status.data_digest, carried] == records.data_digests(train)
    assert set(status.data_digests) == {status.data_digest, carried}
    assert len(train["reference_losses"]["losses"]) == 4
    assert f"{tmp_path}/text.txt" in Path(paths.config).read_text()
    assert not (tmp_path / "b").exists()


def test_model_without_data_or_vocabulary_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(tmp_path) == 1
    assert "data.train_urls" in capsys.readouterr().err
    assert convert(tmp_path, "--data.train_urls", "[x.txt]", "--data.tokenizer", "bytes") == 1
    assert "257 tokens" in capsys.readouterr().err
    assert convert(tmp_path, "--data.train_urls", "[x.txt]", "--model.num_layers", "5") == 1
    assert "another model" in capsys.readouterr().err
    assert not (tmp_path / "root").exists()


def test_killed_import_starts_again_with_other_moments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The moments' type is a flag: those of the first try would not be of the second's type."""
    from midstream_engine.checkpoint import chunk_grid
    from midstream_engine.interop import import_run, streamed_import

    monkeypatch.setattr(chunk_grid, "PACK_BELOW", 64)
    monkeypatch.setattr(streamed_import, "SYNC_BYTES", 0)
    (tmp_path / "text.txt").write_text(" ".join(str(7 * number % 63) for number in range(3000)))
    flags = [
        "--data.train_urls", f"[{tmp_path}/text.txt]", "--data.tokenizer", str(TOKENIZER), "--data.eos_token", "<end>",
        "--trainer.num_train_steps", "8", "--trainer.train_batch_size", "4",
    ]  # fmt: skip
    monkeypatch.setattr(import_run, "measure_reference_losses", lambda *_: None)

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(streamed_import, "write_rest", kill)
        with pytest.raises(KeyboardInterrupt):
            convert(tmp_path, *flags)
    assert convert(tmp_path, *flags, "--optimizer.mu_dtype", "bfloat16") == 0
    checkpoint = records.RunPaths(str(tmp_path / "root"), "tiny").checkpoint(records.checkpoint_name(0, 1))
    report = verify_checkpoint(checkpoint)
    assert report.flaws == []
    assert {each.dtype for each in report.manifest.array_entries if "/mu/" in each.name} == {"bfloat16"}
