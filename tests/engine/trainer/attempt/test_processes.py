"""An attempt of several processes: the same run as of one process, and one outcome for all."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from midstream_core import records
from midstream_engine.checkpoint.loading.checkpoint_records import read_manifest
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from support.engines.engine_processes import Together, rows
from support.engines.engine_runs import Engine, held

pytestmark = pytest.mark.drawn

# Far more steps than a test waits for: the test ends each attempt itself, on fast and slow machines.
FLAGS = [
    "--trainer.num_train_steps", "5000", "--trainer.checkpointer.keep", "[{every: 10}]",
    "--trainer.steps_per_eval", "5", "--data.validation_urls", "stdlib:json/tool.py",
]  # fmt: skip
TRACKERS = "[{{type: tensorboard, logdir: {}}}, {{type: wandb, mode: offline, save_code: false}}]"


# The first test waits for three attempts, which is long on a busy machine.
long = pytest.mark.timeout(1200)


def statuses(paths: records.RunPaths, attempt: int, count: int = 2) -> list[records.Status]:
    return [records.Status.read(paths.attempt(attempt).status(process)) for process in range(count)]


def spliced(paths: records.RunPaths, attempts: int) -> list[dict[str, Any]]:
    """Return the run's curve: each step from the newest attempt that has it."""
    return list({row["global_step"]: row for n in range(1, attempts + 1) for row in rows(paths, n)}.values())


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> tuple[records.RunPaths, list[tuple[int, str]]]:
    """One run of three attempts, and the exit codes of the first one's processes.

    Two processes on two devices each, one of which is killed; one process on four devices; two processes again, one of
    which is sent a stop signal.
    """
    root = tmp_path_factory.mktemp("moved")
    cache: dict[str, Any] = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    with Together([root, root], *FLAGS, **cache) as both:
        both.until(both.has_saved(1), 600)
        both.until(both.has_trained(1, 14), 600)
        both.processes[1].kill()
        ended = both.finish(600)
    with Engine(root, *FLAGS, devices=4, **cache) as one:
        one.until(lambda: True if len(rows(one.paths, 2)) > 5 else None, 600)
        one.process.send_signal(signal.SIGTERM)
        code, log = one.finish()
        assert code == 0, log
    profile = ["--trainer.profiler", "true", "--trainer.profiler_start_step", "1", "--trainer.profiler_num_steps", "2"]
    with Together([root, root], *FLAGS, *profile, "--trainer.tracker", TRACKERS.format(root / "tb"), **cache) as both:
        first = records.Lineage.read(one.paths.lineage).entries[-1].last_step
        assert first is not None
        both.until(both.has_trained(3, first + 6), 600)
        both.processes[1].send_signal(signal.SIGTERM)
        for code, log in both.finish():
            assert code == 0, log
    return both.paths[0], ended


@pytest.fixture(scope="module")
def alone(
    moved: tuple[records.RunPaths, list[tuple[int, str]]], tmp_path_factory: pytest.TempPathFactory
) -> records.RunPaths:
    """One uninterrupted process on four devices, up to the last step of the migrated run."""
    root, steps = tmp_path_factory.mktemp("alone"), len(spliced(moved[0], 3))
    with Engine(root, *FLAGS, devices=4) as engine:
        engine.until(lambda: True if len(rows(engine.paths, 1)) >= steps else None, 600)
        engine.process.send_signal(signal.SIGTERM)
        code, log = engine.finish()
    assert code == 0, log
    return engine.paths


@long
def test_run_on_two_one_and_two_processes_equals_one(
    alone: records.RunPaths, moved: tuple[records.RunPaths, list[tuple[int, str]]]
) -> None:
    paths, _ = moved
    ours, theirs = spliced(paths, 3), rows(alone, 1)
    assert [row["global_step"] for row in ours] == list(range(len(ours)))
    evaluated = 0
    for mine, reference in zip(ours, theirs, strict=False):
        assert mine["batch_digest"] == reference["batch_digest"]
        assert records.relative_difference(mine["train/loss"], reference["train/loss"]) <= 1e-5
        if "eval/loss" in reference:
            evaluated += 1
            assert records.relative_difference(mine["eval/loss"], reference["eval/loss"]) <= 1e-5
    assert evaluated == len(ours) // 5
    assert [entry.devices for entry in records.Lineage.read(paths.lineage).entries] == [4, 4, 4]


@long
def test_processes_stop_together_and_log_each_line_once(
    moved: tuple[records.RunPaths, list[tuple[int, str]]],
) -> None:
    paths, _ = moved
    first, ours = records.Lineage.read(paths.lineage).entries[-1].first_step, rows(paths, 3)
    assert [row["global_step"] for row in ours] == list(range(first, first + len(ours)))
    both, last = statuses(paths, 3), first + len(ours)
    assert [(one.state, one.step, one.process, one.processes) for one in both] == [
        ("stopped", last, process, 2) for process in range(2)
    ]
    assert {one.checkpoint for one in both} == {f"step-{last}-a003"}
    assert len({one.root_digest for one in both}) == 1
    assert "stopped at step" in Path(paths.attempt(3).log(1)).read_text()
    assert "coordinator_address: null" in Path(paths.config).read_text()


@long
def test_killed_process_is_named_and_loses_only_unsaved(
    moved: tuple[records.RunPaths, list[tuple[int, str]]],
) -> None:
    paths, ((code, log), (killed, _)) = moved
    assert (code, killed) == (1, -signal.SIGKILL), log
    assert re.search(
        r"process 1 \(host-[^)]*, pid \d+\) failed: ", records.Status.read(paths.attempt(1).status(0)).message
    )
    went_on = records.Lineage.read(paths.lineage).entries[1].first_step
    assert went_on % 10 == 0
    assert 10 <= went_on <= len(rows(paths, 1))


@long
def test_processes_read_own_rows_and_share_one_digest(
    moved: tuple[records.RunPaths, list[tuple[int, str]]],
) -> None:
    """The comparison with the run of one process checks the digests of the complete batch."""
    paths, _ = moved
    for process in range(2):
        assert "reads 4 of a batch's 8 examples" in Path(paths.attempt(3).log(process)).read_text()
    assert "examples" not in "".join(re.findall(r"reads .*", Path(paths.attempt(2).log(0)).read_text()))


@long
def test_trackers_and_profiler_run_in_first_process_only(
    moved: tuple[records.RunPaths, list[tuple[int, str]]],
) -> None:
    paths, _ = moved
    attempt = Path(paths.attempt(3).dir)
    (offline,) = (attempt / "wandb").glob("offline-run-*/*.wandb")
    held(offline, b"train/loss", b"eval/loss")
    (events,) = Path(paths.root, "tb").rglob("events.out.tfevents.*")
    assert b"eval/loss" in events.read_bytes()
    (trace,) = (attempt / "profiler" / "plugins" / "profile").iterdir()
    assert list(trace.glob("*.xplane.pb"))


@long
def test_checkpoint_of_two_processes_equals_that_of_one(
    alone: records.RunPaths, moved: tuple[records.RunPaths, list[tuple[int, str]]]
) -> None:
    """The states differ in last bits: sums over processes have another order than over devices."""
    paths, _ = moved
    theirs, ours = (read_manifest(one.checkpoint("step-10-a001")) for one in (alone, paths))
    assert [(one.name, one.shape, one.grid) for one in ours.array_entries] == [
        (one.name, one.shape, one.grid) for one in theirs.array_entries
    ]
    assert ours.hosts == []
    report = verify_checkpoint(paths.checkpoint("step-10-a001"), deep=True)
    assert (report.flaws, report.unlisted) == ([], [])


LATE = """
import sys, time
from midstream_engine.computation import programs
from midstream_engine import train
compile_steps = programs.compile_steps
programs.compile_steps = lambda *arguments: (time.sleep(35), compile_steps(*arguments))[1]
sys.exit(train.main())
"""


@long
@pytest.mark.slow
def test_slow_process_is_waited_for(tmp_path: Path) -> None:
    """A host that starts slowly, or compiles what another one found in its cache."""
    flags = ["--trainer.num_train_steps", "2"]
    with Together([tmp_path, tmp_path], *flags, programs=[["-m", "midstream_engine.train"], ["-c", LATE]]) as both:
        for code, log in both.finish(480):
            assert code == 0, log
    assert [row["global_step"] for row in rows(both.paths[0], 1)] == [0, 1]


OTHER = """
import sys
from midstream_engine import train
sys.argv = [word.replace("json/tool.py", "json/scanner.py") for word in sys.argv]
sys.exit(train.main())
"""


@long
def test_other_validation_text_on_a_host_is_refused(tmp_path: Path) -> None:
    """Its batches of an evaluation would be others, or fewer, and the other processes would wait for the rest."""
    roots = [tmp_path / "one", tmp_path / "two"]
    with Together(roots, *FLAGS, programs=[["-m", "midstream_engine.train"], ["-c", OTHER]]) as both:
        ended = both.finish(480)
    assert [code for code, _ in ended] == [1, 1], ended
    assert "validation differs: " in statuses(both.paths[0], 1, 1)[0].message


# A process with devices of more memory than the others'.
ROOMY = """
import sys
from midstream_engine import train
from midstream_engine.computation import setup
setup.by_memory = lambda *arguments, **named: "qkv"
sys.exit(train.main())
"""


@long
def test_other_stored_activations_on_a_host_are_refused(tmp_path: Path) -> None:
    """Its program would be another one, and wait for other collectives."""
    flags = [*FLAGS, "--model.gradient_checkpointing", "auto"]
    with Together([tmp_path, tmp_path], *flags, programs=[["-m", "midstream_engine.train"], ["-c", ROOMY]]) as both:
        ended = both.finish(480)
    assert [code for code, _ in ended] == [1, 1], ended
    assert "model.gradient_checkpointing differs: qkv on " in statuses(both.paths[0], 1, 1)[0].message


@long
def test_nan_loss_ends_all_processes_with_one_message(tmp_path: Path) -> None:
    with Together([tmp_path, tmp_path], *FLAGS, "--optimizer.learning_rate", "1e30", "--optimizer.warmup", "0") as both:
        ended = both.finish(600)
    said = [re.search(r"the loss of step \d+ is (NaN|infinite)", log) for _, log in ended]
    assert [code for code, _ in ended] == [1, 1], ended
    assert said[0] is not None
    assert said[1] is not None
    assert said[0][0] == said[1][0]
    assert all(said[0][0] in one.message for one in statuses(both.paths[0], 1))
