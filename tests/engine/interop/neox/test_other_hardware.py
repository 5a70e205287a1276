"""A run of GPT-NeoX on eight ranks goes on with two, with transformers, and again with eight (Hubble's hand-out).

Hubble names both steps as what users of its checkpoints have no program for: fewer ranks, and optimizer states for
transformers.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from midstream_engine.convert import main
from midstream_engine.interop.archive import TorchFile
from midstream_engine.interop.neox.directory import find
from midstream_engine.interop.neox.importer import open_neox
from midstream_engine.interop.neox.reader import Read, read
from midstream_engine.interop.tensor_files import read_tensors
from midstream_host.driver.reshard.program import divide_into
from support.imports.neox_checkpoints import NEOX, PRESENT, filled

pytestmark = [
    pytest.mark.drawn,
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
SOURCE = NEOX / "llama-bf16-z1-pp1-dp2"
LAYOUT = ("--gqa-layout", str(PRESENT.gqa_layout), "--rms-epsilon", str(PRESENT.rms_epsilon))


def convert(source: Path, target: Path, *options: str) -> Path:
    assert main([str(source), str(target), *options]) == 0
    return target


def imported(source: Path, target: Path, *options: str) -> Path:
    return convert(source, target, "--without-data", "--without-reference-losses", *options)


def divided(source: Path, target: Path, ranks: int) -> Path:
    """Return a ``load:`` directory for another number of data-parallel ranks."""
    divide_into(str(source), str(target), ranks, lambda _done, _total: None)
    return target


def numbers_of(state: Read) -> dict[tuple[int, str, str], np.ndarray]:
    """Return masters and moments in NeoX's own names."""
    return {(*key, kind): row.read() for key, held in state.parameters.items() for kind, row in held.rows[0].items()}


def test_eight_ranks_to_two_to_transformers_and_back(tmp_path: Path) -> None:
    eight = divided(SOURCE, tmp_path / "eight", 8)
    assert len(list(eight.glob("*/*_optim_states.pt"))) == 8
    two = divided(eight, tmp_path / "two", 2)
    theirs, ours = (numbers_of(read(find(str(place)))) for place in (SOURCE, two))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(array, theirs[key]) for key, array in ours.items())
    run = imported(two, tmp_path / "run", *LAYOUT)
    trainer = convert(run, tmp_path / "trainer", "--to", "huggingface-trainer") / "checkpoint-3"
    weights = read_tensors(str(trainer))
    embedding = weights["model.embed_tokens.weight"]
    assert np.array_equal(embedding, theirs[0, "word_embeddings.weight", "fp32"])
    assert TorchFile(str(trainer / "optimizer.pt")).value["state"][0]["step"].read() == 3
    again = imported(trainer, tmp_path / "again")
    back = convert(again, tmp_path / "back", "--to", "neox", "--processes", "2")
    expected = filled(SOURCE)
    for place in (back, divided(back, tmp_path / "eight again", 8)):
        adopted = open_neox(str(place))
        assert adopted.state["schedule_count"] == adopted.state["step"] == 3
        arrays = {array.name: array.value() for array in adopted.arrays}
        adopted.verify()
        assert [name for name, array in expected.items() if not np.array_equal(array, arrays[name])] == []
