"""Export of runs to GPT-NeoX: the importer reads the same numbers, whatever the number of processes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import yaml

from midstream_engine.convert import main
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.exported_run import open_run
from midstream_engine.interop.exporters import ExportOptions
from midstream_engine.interop.neox.accumulation import GradientScale
from midstream_engine.interop.neox.directory import find
from midstream_engine.interop.neox.exporter import export
from midstream_engine.interop.neox.importer import open_neox
from midstream_engine.interop.neox.reader import read
from midstream_host.driver.reshard.reshard import reshard
from support.imports.neox_checkpoints import NEOX, choices_of, filled

pytestmark = [
    pytest.mark.drawn,
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
TAG = "global_step3"


def imported(name: str, folder: Path, *options: str) -> Path:
    """Return the directory of a fixture's import."""
    choices = choices_of(name)
    layout = ["--gqa-layout", str(choices.gqa_layout), "--rms-epsilon", str(choices.rms_epsilon)]
    given = [] if choices.gqa_layout is None else layout
    assert main([str(NEOX / name), str(folder / "run"), "--without-data", "--without-reference-losses", *given]) == 0
    return folder / "run"


def exported(run: Path, name: str, *options: str) -> Path:
    assert main([str(run), str(run.parent / name), "--to", "neox", *options]) == 0
    return run.parent / name


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    """Return every array that an export has, as the importer reads it without options."""
    adopted = open_neox(str(path))
    arrays = {array.name: array.value() for array in adopted.arrays}
    adopted.verify()
    return arrays


def assert_same(arrays: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert arrays.keys() == expected.keys()
    assert [name for name, array in arrays.items() if not np.array_equal(array, expected[name])] == []


@pytest.mark.parametrize(
    "name",
    ["tied-fp32-z1-pp2-tp2", "llama-bf16-z1-dp5", "llama-old-fp32-z1-tp2", "pythia-bf16-z1-dp3", "pythia-fp32-z1-dp2"],
)
def test_an_export_has_every_number(name: str, tmp_path: Path) -> None:
    """Tied, grouped and interleaved queries, parallel residual; on one process, on several, and divided again."""
    run, expected = imported(name, tmp_path), filled(NEOX / name)
    first = exported(run, "first", "--pipe-parallel-size", "0")
    assert_same(arrays_of(first), expected)
    assert_same(arrays_of(exported(run, "third", "--processes", "3")), expected)
    for before, ranks in (("first", 8), ("third", 4)):
        target = tmp_path / f"{ranks}" / TAG
        target.parent.mkdir()
        reshard(str(tmp_path / before / TAG), str(target), ranks)
        assert_same(arrays_of(target), expected)
        reshard(str(target), str(target.parent / "back"), {"first": 1, "third": 3}[before])
        back, original = (read(find(str(place))) for place in (target.parent / "back", tmp_path / before))
        assert back.steps == original.steps == {3}


@pytest.mark.parametrize("name", ["tied-fp32-z1-pp2-tp2", "pythia-fp32-z1-dp2", "llama-bf16-z1-dp5"])
@pytest.mark.parametrize("stages", ["0", "1"])
def test_plain_data_parallelism_has_every_number(name: str, stages: str, tmp_path: Path) -> None:
    """In float32 the optimizer is torch's own, in the model file, whatever the number of processes."""
    run, expected = imported(name, tmp_path), filled(NEOX / name)
    there = exported(run, "there", "--zero-stage", "0", "--processes", "2", "--pipe-parallel-size", stages)
    assert bool(list(there.rglob("*optim_states.pt"))) == ("bf16" in name)
    assert_same(arrays_of(there), expected)
    (tmp_path / "divided").mkdir()
    done = reshard(str(there / TAG), str(tmp_path / "divided" / TAG), 3)
    assert (done.ranks_before, done.ranks) == (2, 3)
    assert_same(arrays_of(tmp_path / "divided" / TAG), expected)


@pytest.mark.parametrize("name", ["llama-bf16-z1-tp2-pp2-dp2", "tied-fp32-z1-pp2-tp2", "pythia-fp32-z1-tp2-dp2"])
def test_tensor_parallel_ranks_are_merged_and_split(name: str, tmp_path: Path) -> None:
    """Two ranks, one, two again: every rank has its numbers."""
    source = read(find(str(NEOX / name)))
    scale = GradientScale(3 if "pp2" in name else 1)  # that DeepSpeed's pipeline added up 3 gradients
    one = exported(imported(name, tmp_path), "one")
    assert main([str(one), str(tmp_path / "again"), "--without-data", "--without-reference-losses"]) == 0
    two = exported(tmp_path / "again", "two", "--model-parallel-size", "2", "--processes", "2")
    assert_same(arrays_of(two), filled(NEOX / name))
    ranks = read(find(str(two)))
    renamed = {key: (key[0], key[1].replace("dense_h_to_4h", "linear1").replace("dense_4h_to_h", "linear2"))
               for key in source.parameters}  # fmt: skip
    assert set(renamed.values()) == ranks.parameters.keys()
    for key, parameter in source.parameters.items():
        if "pythia" in name and key[1] in ("attention.dense.bias", "mlp.dense_4h_to_h.bias"):
            continue  # with a parallel residual each rank has a bias of its own, of which the sum counts
        held = ranks.parameters[renamed[key]]
        assert held.rows.keys() == parameter.rows.keys() == {0, 1}
        for rank, kinds in parameter.rows.items():
            for kind, row in kinds.items():
                assert np.array_equal(scale.apply(kind, row.read()), held.rows[rank][kind].read()), (key, kind)
            assert np.array_equal(parameter.weights[rank].read(), held.weights[rank].read())


def test_the_same_run_is_the_same_bytes(tmp_path: Path) -> None:
    """An import of an export is exported to the same files."""
    first = exported(imported("llama-bf16-z1-pp1-dp2", tmp_path), "first", "--processes", "2")
    assert main([str(first), str(tmp_path / "again"), "--without-data", "--without-reference-losses"]) == 0
    second = exported(tmp_path / "again", "second", "--processes", "2")
    files = [path.relative_to(first) for path in sorted(first.rglob("*")) if path.is_file()]
    assert len(files) == 10
    assert [str(path) for path in files if (first / path).read_bytes() != (second / path).read_bytes()] == []


def test_an_export_has_the_schedule_and_neox_names(tmp_path: Path) -> None:
    there = exported(imported("pythia-bf16-z1-dp3", tmp_path), "there", "--processes", "2")
    found, source = read(find(str(there))), read(find(str(NEOX / "pythia-bf16-z1-dp3")))
    assert found.state["lr_scheduler"] == source.state["lr_scheduler"]
    assert found.state["param_shapes"] is not None
    assert found.groups[0]["lr"] == pytest.approx(source.groups[0]["lr"], rel=1e-12)
    (path,) = (there / TAG / "configs").iterdir()
    arguments = yaml.safe_load(path.read_text())
    given = yaml.safe_load(next((NEOX / "pythia-bf16-z1-dp3" / TAG / "configs").iterdir()).read_text())
    given |= {"pipe-parallel-size": 1, "train_micro_batch_size_per_gpu": 15}
    ours = {name.replace("_", "-"): value for name, value in given.items()}
    differing = {name for name, value in ours.items() if arguments.get(name) != value}
    assert differing == {"rms-norm-epsilon"}  # of a norm that the model has not


def test_what_neox_cannot_have_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = imported("pythia-bf16-z1-dp3", tmp_path)
    for option, problem in (
        ("--processes=4", "30 cannot be divided over 4 processes"),
        ("--model-parallel-size=3", "64 rows cannot be divided over 3 tensor-parallel ranks"),
    ):
        assert main([str(run), str(tmp_path / "there"), "--to", "neox", option]) == 1
        assert problem in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    opened = open_run(str(run))
    for setting, problem in (
        ({"weight_decay_modules": None}, "word_embeddings.weight does not decay here, and in GPT-NeoX it does"),
        ({"lr_schedule": "inv"}, "inv here, and GPT-NeoX has cosine, linear, constant"),
        ({"lr_schedule": "linear"}, "the learning rate of update 3 is 0.00285 here, and 0.00283333333 in GPT-NeoX"),
        ({"nesterov": True}, "optimizer.nesterov: True here, and GPT-NeoX has False"),
    ):
        optimizer = dataclasses.replace(opened.config.optimizer, **setting)
        changed = dataclasses.replace(opened, config=dataclasses.replace(opened.config, optimizer=optimizer))
        with pytest.raises(ConversionError, match=problem):
            export(changed, str(tmp_path / "there"), ExportOptions())
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
