"""The first update of a resumed run: computed before its reference losses, shown only when they agree."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from midstream_core import records
from midstream_core.attempt.errors import ContradictionError
from midstream_engine.attempt.first_update import precedes_losses
from midstream_engine.attempt.restore_evidence import check_losses_agree
from midstream_engine.attempt.resume import Origin
from midstream_engine.config import load_config
from support.engines.engine_runs import Engine
from support.paths import CONFIGS

FIRST, ALL = 4, 8  # steps of the first attempt, and of both
# An engine that stops where the reference losses are measured: the file REACHED then has the number of its updates.
HELD = """
import os, sys, time
from midstream_engine import train
from midstream_engine.computation import programs
from midstream_engine.computation.reference_losses import ReferenceLosses

compile_steps, measure, updates = programs.compile_steps, ReferenceLosses.measure, [0]

def counted(*arguments):
    step = compile_steps(*arguments)
    def count(*given):
        updates[0] += 1
        return step(*given)
    return count

def held(self, model, batch):
    with open(os.environ["REACHED"] + ".partial", "w") as file:
        file.write(str(updates[0]))
    os.rename(os.environ["REACHED"] + ".partial", os.environ["REACHED"])
    while not os.path.exists(os.environ["GO"]):
        time.sleep(0.01)
    return measure(self, model, batch)

programs.compile_steps, ReferenceLosses.measure = counted, held
sys.exit(train.main())
"""
NO_ROOM = """
import sys
from midstream_engine import train
from midstream_engine.attempt import first_update
from midstream_engine.loop import copy_memory
copy_memory.ALWAYS_COPIED = 0
first_update.available_memory = lambda: 1
sys.exit(train.main())
"""


def flags(steps: int) -> list[str]:
    rate = ("--optimizer.lr_schedule", "constant", "--optimizer.warmup", "0")  # does not depend on the last step
    return ["--trainer.num_train_steps", str(steps), "--trainer.checkpointer.keep", "[]", *rate]


@pytest.fixture(scope="module")
def trained() -> Iterator[Path]:
    """A root with run ``r`` after its first attempt, and run ``all``, which nothing interrupted."""
    with tempfile.TemporaryDirectory(prefix="midstream-first-") as directory:
        root = Path(directory)
        for name, steps in (("r", FIRST), ("all", ALL)):
            with Engine(root, *flags(steps), run_id=name) as engine:
                code, log = engine.finish()
            assert code == 0, log
        yield root


@pytest.fixture
def root(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "root", symlinks=True)
    return tmp_path / "root"


def promises(root: Path) -> dict[str, bytes]:
    """Return all files of the run that anything takes as evidence: all but attempt 2's log and status."""
    run = root / "runs" / "r"
    own = {"log-0.txt", "status-0.json"}
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file() and not (path.parent.name == "002" and path.name in own)
        and path.name not in {"fence.json", "run.yaml", "lock"}
    }  # fmt: skip


def rows(root: Path, run: str, attempt: int) -> list[dict[str, Any]]:
    return records.parse_metrics(
        Path(records.RunPaths(str(root), run).attempt(attempt).metrics).read_text().splitlines()
    )


def held(root: Path) -> Engine:
    return Engine(root, *flags(ALL), program=HELD, REACHED=str(root / "reached"), GO=str(root / "go"))


@pytest.mark.drawn
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_attempt_ended_before_its_losses_leaves_nothing(root: Path, number: signal.Signals) -> None:
    before = promises(root)
    with held(root) as engine:
        updates = engine.until(lambda: (root / "reached").read_text() if (root / "reached").exists() else None)
        assert updates == "1", "the update waits for the reference losses"
        status = engine.status(2)
        assert status is not None
        assert (status.state, status.step) == (records.RESTORING, FIRST)
        assert promises(root) == before
        engine.process.send_signal(number)
        engine.process.wait(60)
    assert promises(root) == before
    with Engine(root, *flags(ALL)) as again:
        code, log = again.finish()
    assert code == 0, log
    ours, undisturbed = rows(root, "r", 3), rows(root, "all", 1)
    assert [row["global_step"] for row in ours] == list(range(FIRST, ALL))
    assert [row["train/loss"] for row in ours] == [row["train/loss"] for row in undisturbed[FIRST:]], "bit by bit"


@pytest.mark.drawn
def test_first_row_has_the_time_of_its_update(root: Path) -> None:
    with held(root) as engine:
        engine.until(lambda: True if (root / "reached").exists() else None)
        reached = (root / "reached").stat().st_mtime
        (root / "go").touch()
        code, log = engine.finish()
    assert code == 0, log
    rows, evidence = engine.rows(2), records.Restore.read(engine.paths.attempt(2).restore)
    assert rows[0]["time"] <= reached < rows[1]["time"]
    assert rows[1]["throughput/duration"] <= rows[1]["time"] - os.stat(engine.paths.attempt(2).restore).st_mtime
    assert evidence.losses_error == 0.0
    assert "reference_losses" not in evidence.seconds, "the first update did not wait for them"


@pytest.mark.drawn
def test_losses_that_disagree_end_the_attempt(root: Path) -> None:
    paths = records.RunPaths(str(root), "r")
    directory = Path(paths.checkpoint(f"step-{FIRST}-a001"))
    train = json.loads((directory / records.TRAIN).read_text())
    train["reference_losses"]["losses"][0] *= 1.01
    data = json.dumps(train).encode()
    manifest = json.loads((directory / records.MANIFEST).read_text())
    for entry in manifest["objects"]:
        if entry["path"] == records.TRAIN:
            entry.update(size=len(data), sha256=hashlib.sha256(data).hexdigest(), crc32c="")
    (directory / records.TRAIN).write_bytes(data)
    (directory / records.MANIFEST).write_text(json.dumps(manifest))
    before = promises(root)
    with Engine(root, *flags(ALL)) as engine:
        code, log = engine.finish()
    status = engine.status(2)
    assert status is not None
    assert (code, status.state, status.step) == (1, "failed", FIRST), log
    assert "reference losses differ by 9.9e-03 relative" in status.contradiction, status
    assert "no update of this attempt counts" in status.message
    after = promises(root)
    evidence = records.Restore.from_json(json.loads(after.pop("attempts/002/restore.json")), "restore.json")
    assert after == before, "no row, no lineage, no checkpoint"
    assert evidence.losses_error > 0.009


@pytest.mark.drawn
def test_first_update_waits_without_memory_for_a_copy(root: Path) -> None:
    with Engine(root, *flags(ALL), program=NO_ROOM) as engine:
        code, log = engine.finish()
    assert code == 0, log
    assert "the first update waits for the reference losses: a copy of it needs" in log
    assert [row["global_step"] for row in engine.rows(2)] == list(range(FIRST, ALL))
    assert records.Restore.read(engine.paths.attempt(2).restore).seconds["reference_losses"] > 0


CONFIG = load_config(["--config_path", str(CONFIGS / "gpt2_tiny.yaml"), "--trainer.num_train_steps", "8"]).config


def origin(**more: Any) -> Origin:
    return Origin("/runs/r/checkpoints/step-4-a001", **{
        "own": True, "same_run": True, "root_digest": None, "migration": "", "state": {"step": 4},
        "config": CONFIG.resolved(), **more,
    })  # fmt: skip


def evidence(recorded: list[float], recomputed: list[float], error: float) -> records.Restore:
    return records.Restore("step-4-a001", 4, "a", "a", recorded, recomputed, error, "b", "b")


@pytest.mark.parametrize(
    ("recorded", "recomputed", "error", "changed", "ends"),
    [
        ([2.0], [2.0], 0.0, {}, False),
        ([2.0], [2.1], 0.05, {}, True),
        ([2.0], [float("nan")], 1e308, {}, True),
        ([], [2.1], 1e308, {}, False),  # nothing is compared
        ([2.0], [2.0, 2.0], 1e308, {}, False),
        ([2.0], [2.1], 0.05, {"model": {"resid_pdrop": 0.9}}, False),  # another function, by the user's wish
        ([2.0], [2.1], 0.05, {"trainer": {"steps_per_eval": 3}}, True),
    ],
)
def test_only_comparable_losses_end_an_attempt(
    recorded: list[float], recomputed: list[float], error: float, changed: Any, ends: bool
) -> None:
    resolved: Any = json.loads(json.dumps(CONFIG.resolved()))
    for section, values in changed.items():
        resolved[section] |= values
    shown = ""
    try:
        check_losses_agree(evidence(recorded, recomputed, error), origin(config=resolved), CONFIG)
    except ContradictionError as failure:
        shown = failure.contradiction
    assert ("reference losses differ by" in shown) == ends


@pytest.mark.parametrize(
    ("settings", "of", "client", "expected"),
    [
        ([], {}, None, True),
        ([], {}, object(), False),  # several processes measure together
        ([], {"own": False}, None, False),  # a save may be due for it
        (["--trainer.num_train_steps", "4"], {}, None, False),
        (["--trainer.profiler", "true", "--trainer.profiler_start_step", "0"], {}, None, False),
        (["--trainer.profiler", "true", "--trainer.profiler_start_step", "5"], {}, None, True),
    ],
)
def test_first_update_precedes_losses_where_nothing_else_is_due(
    settings: list[str], of: dict[str, Any], client: object, expected: bool
) -> None:
    arguments = ["--config_path", str(CONFIGS / "gpt2_tiny.yaml"), "--trainer.num_train_steps", "8", *settings]
    ready: Any = SimpleNamespace(setup=SimpleNamespace(config=load_config(arguments).config))
    attempt: Any = SimpleNamespace(processes=SimpleNamespace(client=client))
    assert precedes_losses(attempt, origin(**of), ready) == expected
