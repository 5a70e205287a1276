"""Comparison of accelerators: names, prices, rows, order, calibration. Nothing is compiled."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from midstream.compare import calibration, subject
from midstream.compare.baseline import baseline
from midstream.compare.calibration import Calibration, Pair
from midstream.compare.candidates import Candidate, candidates, parse_prices, seen_accelerators
from midstream.compare.compare import compare
from midstream.compare.comparison import ComparisonRow, ordered, row
from midstream.compare.compiler import Compilers
from midstream.compare.device_names import accelerators_of_devices
from midstream.compare.estimate import Memory, Range, StepEstimate
from midstream.compare.subject import PresentRun, Subject
from midstream.errors import UsageError
from midstream.fleet.fleet import Fleet
from midstream.fleet.fleet_file import parse_fleet
from midstream.headless.compare_accelerators import is_config, text
from midstream.hosts.host_pool import HostPool
from midstream.install.reporter import Reporter
from midstream.watch.known_devices import devices_file, remember_devices
from midstream.watch.machine import Accelerator, Machine
from midstream.watch.snapshot import HostView, Snapshot
from midstream_core.accelerator_types import parse
from midstream_engine.data.tokenize.tokenizer import load_tokenizer
from support.accelerator_types import known

SLICE = """
hosts: {lab: {type: local, devices: 2}}
targets:
  rented: {type: tpu, project: p, zone: z, accelerator_type: v5litepod-16, runtime_version: r, price_per_hour: 19.2}
  cube: {type: tpu, project: p, zone: z, accelerator_type: v5p, topology: 2x2x2, runtime_version: r}
"""
ESTIMATE = StepEstimate(
    "estimate", "v5e-16", fits=True, fits_as_configured=True, configured=4, largest=8, needed=None,
    compile_seconds=60.0, devices=16, device_kind="TPU v5 lite", device_memory=16 << 30, parameters=10,
    state_bytes=100, batch=64, tokens=1000, steps=2000, per_device_parallelism=4,
    accumulation=1, memory=Memory(1 << 30, 1 << 20, 1 << 21), step_seconds=2.0,
    step_seconds_low=1.5, step_seconds_high=3.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "topology", "devices"),
    [
        ("v5e-16", "v5e:4x4", 16),
        ("v5litepod-16", "v5e:4x4", 16),
        ("v5litepod-8", "v5e:2x4", 8),
        ("v6e-256", "v6e:16x16", 256),
        ("v4-16", "v4:2x2x2", 8),
        ("v5p-8", "v5p:2x2x1", 4),
        ("v5p-128", "v5p:4x4x4", 64),
        ("tpu7x-8", "tpu7x:2x2x1", 8),
        ("tpu7x-4", "tpu7x:2x1x1", 4),
        ("v5p:2x2x4", "v5p:2x2x4", 16),
        ("h100x8", "h100x8", 8),
        ("a100-80x8", "a100-80x8", 8),
        ("a100x4", "a100-80x4", 4),
        ("H200x16", "h200x16", 16),
    ],
)
def test_names_of_accelerators(name: str, topology: str, devices: int) -> None:
    found = known(name)
    assert (found.topology, found.devices) == (topology, devices)


def test_sizes_that_do_not_exist_are_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match="there are v5e-1, v5e-4, v5e-8, v5e-16"):
        parse("v5e-12")
    with pytest.raises(ValueError, match="v5p-8, v5p-16"):
        parse("v5p-9")
    with pytest.raises(ValueError, match="complete hosts of 8"):
        parse("h100x12")
    with pytest.raises(ValueError, match="write one as v5e:2x2"):
        parse("v5e:2x2x2")
    assert parse("lab") is None
    assert parse("lab-2") is None


def test_devices_of_a_host_are_named() -> None:
    names = {
        ("TPU v5 lite",) * 8: "v5e:2x4", ("TPU v4",) * 4: "v4:2x2x1", ("NVIDIA H100 80GB HBM3",) * 8: "h100x8",
        ("NVIDIA A100-SXM4-40GB",) * 2: "a100-40x2", ("NVIDIA A100-SXM4-80GB",) * 2: "a100-80x2",
    }  # fmt: skip
    assert {kinds: known_of(kinds) for kinds in names} == names
    assert accelerators_of_devices(("cpu",) * 4) is None
    assert accelerators_of_devices(()) is None
    assert accelerators_of_devices(("TPU v4", "TPU v5 lite")) is None


def known_of(kinds: tuple[str, ...]) -> str:
    found = accelerators_of_devices(kinds)
    return found.topology if found else ""


def test_candidates_are_accelerators_and_targets_with_prices() -> None:
    fleet = parse_fleet(SLICE)
    found = candidates("v6e-16, v5e-16,rented,cube", fleet, None, {"v6e-16": 43.2})
    assert [(each.name, each.accelerators.topology, each.target, each.price) for each in found] == [
        ("v6e-16", "v6e:4x4", "", 43.2),
        ("v5e-16", "v5e:4x4", "", 19.2),  # the price of the target with the same accelerators
        ("rented", "v5e:4x4", "rented", 19.2),
        ("cube", "v5p:2x2x2", "cube", None),
    ]


@pytest.mark.parametrize(
    ("names", "prices", "message"),
    [
        ("v5e-17", {}, "there is no such slice"),
        ("rentd", {}, "neither accelerators nor a target.*rented"),
        (",", {}, "--with names no accelerators"),
        ("v5e-16", {"v6e-16": 1.0}, "--price v6e-16: v6e-16 is not one of --with"),
        ("lab", {}, "lab does not answer"),
    ],
)
def test_wrong_candidates_say_what_to_write(names: str, prices: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        candidates(names, parse_fleet(SLICE), None, prices)
    assert caught.match(message) or message.split(".*")[-1] in str(caught.value)


def test_target_that_is_not_known_is_a_row_beside_the_others() -> None:
    fleet = parse_fleet(SLICE)
    known, lab = candidates("v5e-16,lab", fleet, None, {})
    assert (known.problem, lab.target) == ("", "lab")
    assert lab.problem == "lab does not answer, so that its accelerators are not known"
    subject = Subject("c.yaml", "", ())
    (found,) = compare(fleet, subject, [lab], Compilers(fleet, HostPool(fleet), None, Reporter()))
    assert (found.fits, found.error) == (False, lab.problem)


REQUESTS = """
hosts: {login: {type: ssh, address: login.example.org}}
targets:
  job: {type: slurm, host: login, sbatch: [--nodes=2, --gpus-per-node=h100:8]}
  untyped: {type: slurm, host: login, sbatch: [--gpus=8]}
  pods: {type: kubernetes, pods: 2, resources: {nvidia.com/gpu: 8},
         node_selector: {cloud.google.com/gke-accelerator: nvidia-h100-80gb}}
  product: {type: kubernetes, resources: {nvidia.com/gpu: "4"},
            node_selector: {nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB}}
  slice: {type: kubernetes, pods: 4, resources: {google.com/tpu: 4},
          node_selector: {cloud.google.com/gke-tpu-accelerator: tpu-v5-lite-podslice,
                          cloud.google.com/gke-tpu-topology: 4x4}}
  unlabelled: {type: kubernetes, resources: {nvidia.com/gpu: 8}}
"""


def test_targets_that_do_not_exist_yet_have_what_they_request() -> None:
    fleet = parse_fleet(REQUESTS)
    found = candidates("job,pods,product,slice,untyped,unlabelled", fleet, None, {})
    assert {each.name: each.accelerators.topology for each in found if not each.problem} == {
        "job": "h100x16", "pods": "h100x16", "product": "a100-80x4", "slice": "v5e:4x4",
    }  # fmt: skip
    problems = {each.name: each.problem for each in found if each.problem}
    assert problems["untyped"].startswith("its flags of sbatch request")
    assert "does not answer" in problems["unlabelled"]


def test_accelerators_of_an_unreachable_host_are_those_last_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path))
    fleet = replace(parse_fleet("hosts: {a: {type: local}, b: {type: local}}\n"
                                "targets: {both: {type: hosts, hosts: [a, b]}}\n"), path="fleet.yaml")  # fmt: skip
    assert seen_accelerators(fleet, "a") is None
    remember_devices(fleet, snapshot_of("a", ("NVIDIA H100 80GB HBM3",) * 8))
    assert seen_accelerators(fleet, "both") is None, "of b nothing is known"
    remember_devices(fleet, snapshot_of("b", ("NVIDIA H100 80GB HBM3",) * 8))
    remember_devices(fleet, snapshot_of("b", (), link="down"))
    both = seen_accelerators(fleet, "both")
    assert both is not None
    assert both[0].topology == "h100x16"
    assert both[1].startswith("as it was seen on 20")
    assert seen_accelerators(replace(fleet, path="other.yaml"), "a") is None
    devices_file().write_text("[damaged")
    assert seen_accelerators(fleet, "a") is None


def snapshot_of(name: str, kinds: tuple[str, ...], link: str = "live") -> Snapshot:
    accelerators = tuple(Accelerator(index, kind) for index, kind in enumerate(kinds))
    machine = Machine(name, "Linux", "3.11.7", 8, 0.0, 1, 1, 1, 1, 0.0, accelerators)
    return Snapshot(1, 0.0, (HostView(name, "ssh", link, machine=machine),), ())


def test_prices() -> None:
    assert parse_prices("v5e-16=19.2, lab=3") == {"v5e-16": 19.2, "lab": 3.0}
    for wrong in ("v5e-16", "v5e-16=", "=3", "v5e-16=-1", "v5e-16=nan"):
        with pytest.raises(UsageError, match="malformed"):
            parse_prices(wrong)


def test_row_of_a_config_counts_all_steps() -> None:
    candidate = Candidate("v5e-16", known("v5e-16"), price=3.6)
    found = row(Subject("c.yaml", "", ()), candidate, ESTIMATE, None)
    assert found.tokens_per_second == 500
    assert found.remaining == Range(4000, 3000, 6000)
    assert found.price_to_end == Range(4.0, 3.0, 6.0)
    assert found.migration is None
    assert found.event().cost_to_end == {"value": 4.0, "low": 3.0, "high": 6.0}


def run(**changes: Any) -> PresentRun:
    present = PresentRun("web", "lab", "lab", 500, 1500, 4.0, 3.6, 1 << 30, ("cpu",))
    return replace(present, **changes)


def test_row_of_a_run_has_the_move_and_when_it_pays() -> None:
    candidate = Candidate("v5e-16", known("v5e-16"), price=3.6)
    found = row(Subject("web", "", (), run()), candidate, ESTIMATE, None)
    assert found.steps_left == 1000
    assert found.migration is not None
    assert found.migration.cost is not None
    assert found.migration.seconds > 60, "the compilation and the copy"
    # A step costs 4 s here and 2 s there at the same price: the migration has paid after its cost by what a step saves.
    assert found.migration.cost.pays_after_steps == pytest.approx(found.migration.cost.migration / (3.6 / 3600 * 2))
    assert found.price_to_end is not None
    assert found.price_to_end.value == pytest.approx(2.0 + found.migration.cost.migration)
    slower = row(Subject("web", "", (), run(step_seconds=1.0)), candidate, ESTIMATE, None)
    assert slower.migration is not None
    assert slower.migration.cost is not None
    assert slower.migration.cost.pays_after_steps is None
    own = row(Subject("web", "", (), run(target="rented")), replace(candidate, target="rented"), ESTIMATE, None)
    assert own.migration is None, "the run is there"


def test_baseline_is_what_the_run_has_measured() -> None:
    curve = [{"throughput/duration": 4.0 + step / 10, "throughput/tokens_per_second": 100.0} for step in range(11)]
    present = baseline(run(curve=curve, kinds=("TPU v4",) * 4, step_seconds=4.5))
    assert present is not None
    assert (present.name, present.devices, present.device_kind) == ("lab (measured)", 4, "TPU v4")
    assert (present.step.value, present.step.low, present.step.high) == pytest.approx((4.5, 4.1, 4.9))
    assert (present.tokens_per_second, present.steps_left) == (100, 1000)
    assert present.price_to_end is not None
    assert present.price_to_end.value == pytest.approx(4.5)
    few = baseline(run(curve=curve[:2]))
    assert few is not None
    assert few.step == Range(4.0, 4.0, 4.1)
    unknown = baseline(run(steps=0))
    assert unknown is not None
    assert (unknown.steps_left, unknown.price_to_end, unknown.tokens_per_second) == (None, None, None)
    assert baseline(run(step_seconds=0.0)) is None, "nothing is measured yet"
    assert baseline(None) is None


def test_order_is_by_cost_where_all_have_a_price_else_by_time() -> None:
    fast = replace(ESTIMATE, step_seconds=1.0)
    what = Subject("c.yaml", "", ())
    cheap = row(what, Candidate("cheap", known("v5e-16"), price=1.0), ESTIMATE, None)
    dear = row(what, Candidate("dear", known("v5p-8"), price=9.0), fast, None)
    small = row(what, Candidate("small", known("v5e-1")), replace(ESTIMATE, fits=False, step_seconds=None), None)
    broken = ComparisonRow(Candidate("broken", known("v6e-1")), error="the compiler failed")
    names = [each.candidate.name for each in ordered([broken, small, dear, cheap])]
    assert names == ["cheap", "dear", "small", "broken"]
    free = replace(cheap, candidate=replace(cheap.candidate, price=None))
    assert [each.candidate.name for each in ordered([free, dear])] == ["dear", "cheap"]


def test_table_names_what_does_not_fit_and_what_would() -> None:
    refused = replace(ESTIMATE, fits_as_configured=False, configured=16, per_device_parallelism=4, needed=68 << 30)
    none = replace(refused, fits=False, step_seconds=None, memory=None, largest=None, per_device_parallelism=None)
    what = Subject("c.yaml", "", ())
    rows = [
        row(what, Candidate(name, known(name)), each, None) for name, each in (("v5e-16", refused), ("v5e-1", none))
    ]
    lines = text(what, rows)
    assert "v5e-16: 16 at a time needs 73.0 GB a device; trainer.per_device_parallelism 4 fits" in lines
    assert "v5e-1: does not fit: one example at a time needs 73.0 GB a device" in lines
    assert lines[0].split() == ["CANDIDATE", "DEVICES", "FITS", "AT", "A", "TIME", "MEMORY", "STEP", "TOKENS/S", "TO",
                                "THE", "END", "COST"]  # fmt: skip


def test_table_drops_ranges_and_columns_to_fit_a_terminal() -> None:
    what = Subject("c.yaml", "", ())
    rows = [row(what, Candidate(name, known(name), price=9.0), ESTIMATE, None) for name in ("v5e-16", "v5p-8")]
    entire = text(what, rows)
    assert " to " in entire[1]
    assert text(what, rows, width=len(entire[0]) + len(entire[1])) == entire
    for width in (120, 80, 60):
        lines = text(what, rows, width=width)
        assert max(map(len, lines[: len(rows) + 1])) <= width
        assert "CANDIDATE" in lines[0]
        assert "FITS" in lines[0]
        assert lines[0].endswith("COST")
        assert lines[-1] == "a wider terminal shows more, and --json everything"


def test_calibration_is_stored_and_applied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path))
    assert calibration.calibration(calibration.read_pairs(), "TPU v4") is None
    calibration.remember([Pair("a", "v4:2x2x1", "TPU v4", 1.0, 1.1)])
    stored = calibration.calibration_file().read_text()
    calibration.calibration_file().write_text(stored + "damaged\n")
    pairs = calibration.remember([Pair("b", "v4:2x2x1", "TPU v4", 1.0, 1.3), Pair("a", "v4:2x2x1", "TPU v4", 1.0, 0.9)])
    assert [(pair.run, pair.measured) for pair in pairs] == [("b", 1.3), ("a", 0.9)], "the newest of each run"
    found = calibration.calibration(calibration.read_pairs(), "TPU v4")
    assert found is not None
    assert (found.pairs, found.ratio, found.low, found.high) == (2, pytest.approx(1.1), 0.9, 1.3)
    assert found.applied(Range(2, 1, 4)).high == pytest.approx(4.4), "of two pairs the estimate's own range"
    three = Calibration("TPU v4", 3, 1.1, 0.9, 1.3)
    assert three.applied(Range(2, 1, 4)) == Range(2.2, 1.8, 2.6)
    assert "measured / estimated 1.10 in 3 earlier runs (0.90 to 1.30)" in three.describe()


@pytest.mark.parametrize(
    ("vocabulary", "added", "size"),
    [
        ({"a": 0, "b": 1}, ["<end>"], 3),
        ([["a", -1.0], ["<end>", -2.0]], ["<end>"], 2),
        ({"a": 0, "b": 9}, ["<end>"], 10),  # ids with gaps
        ({"a": 0, "<end>": 3}, ["<end>", "<pad>", "<cut>", "<mask>"], 5),
    ],
)
def test_size_of_a_tokenizer_as_the_engine_counts_it(
    tmp_path: Path, vocabulary: Any, added: list[str], size: int
) -> None:
    file = tmp_path / "tokenizer.json"
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    tokens = [{"content": token, "id": 5, **flags} for token in added]
    kind: dict[str, Any] = {"type": "Unigram", "unk_id": 0}
    if isinstance(vocabulary, dict):
        kind = {"type": "WordLevel", "unk_token": "a"}
    file.write_text(json.dumps({"version": "1.0", "model": {**kind, "vocab": vocabulary}, "added_tokens": tokens}))
    assert subject.vocabulary_of_file(str(tmp_path), tmp_path) == size
    assert subject.vocabulary_of_file(str(file), tmp_path) == size
    pytest.importorskip("tokenizers", reason="needs tokenizers: make setup")
    assert load_tokenizer(str(file), "<end>").vocab_size == size
    file.write_text("{}")
    with pytest.raises(UsageError, match=r"no tokenizer\.json"):
        subject.vocabulary_of_file(str(file), tmp_path)


def test_config_without_its_tokenizer_says_how_to_go_on(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("data: {tokenizer: /no/tokenizer.json}\n")
    with pytest.raises(UsageError, match=r"not on this machine \(-- --data.tokenizer ids:SIZE"):
        subject.of_config(config, ())
    flags = ("--data.tokenizer", "ids:100")
    assert subject.of_config(config, flags).overrides == flags


def test_config_is_a_path_and_a_run_is_none(tmp_path: Path) -> None:
    assert is_config("configs/gpt2_nano.yaml")
    assert is_config("c.yaml")
    assert not is_config("webtext")


def test_fleet_is_not_needed_for_accelerators() -> None:
    assert candidates("v5e-16", Fleet(), None, {})[0].price is None
