"""Failures of one process of an attempt in which no update may be lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from midstream_core import records
from support.engines.engine_processes import Together, rows

pytestmark = pytest.mark.drawn

PATCHED = """
import sys
from midstream_engine.runtime.host_memory import keep_host_memory
from midstream_engine import train
{patch}
sys.exit(train.main(sys.argv[1:]))
"""
# The bucket does not answer: neither the loop nor the reference losses of the save get the batch.
NO_BATCH = """
from midstream_engine.data.batches import TrainingBatches
from midstream_engine.data.errors import DataError
read = TrainingBatches.samples
def samples(self, index, *arguments):
    if index == 30:
        raise DataError("the bucket does not answer")
    return read(self, index, *arguments)
TrainingBatches.samples = samples
"""
# As where a tracker takes long to finish and the machine is preempted.
KILLED_AFTER_THE_END = """
import os, signal, time
from midstream_engine.attempt import run_attempt
def close(metrics):
    time.sleep(5)
    os.kill(os.getpid(), signal.SIGKILL)
run_attempt.close_metrics = close
"""


def programs(*patches: str) -> list[list[str]]:
    return [["-c", PATCHED.format(patch=patch)] for patch in patches]


@pytest.mark.parametrize("failing", [(NO_BATCH,), ("", NO_BATCH)], ids=["alone", "one of two"])
def test_data_that_ends_on_one_process_loses_no_update(failing: tuple[str, ...], tmp_path: Path) -> None:
    flags = ("--trainer.num_train_steps", "60", "--trainer.checkpointer.keep", "[]")
    with Together([tmp_path] * len(failing), *flags, programs=programs(*failing)) as both:
        ended = both.finish()
    assert [code for code, _ in ended] == [1] * len(failing), ended
    assert "the bucket does not answer" in ended[0][1], "the first failure is named"
    directory = both.paths[0].checkpoint("step-30-a001")
    assert Path(directory, records.MANIFEST).exists(), ended[0][1]
    assert json.loads(Path(directory, "train.json").read_text())["reference_losses"] is None
    assert [row["global_step"] for row in rows(both.paths[0], 1)][:30] == list(range(30))

    with Together([tmp_path], "--trainer.num_train_steps", "32") as again:  # the bucket answers again
        ((code, log),) = again.finish()
    assert code == 0, log
    assert "continuing at step 30" in log


def test_process_lost_after_the_end_is_no_failure_of_others(tmp_path: Path) -> None:
    flags = ("--trainer.num_train_steps", "4")
    with Together([tmp_path, tmp_path], *flags, programs=programs(KILLED_AFTER_THE_END, "")) as both:
        ended = both.finish()
    assert [code for code, _ in ended] == [-9, 1], ended
    found = [records.Status.read(both.paths[0].attempt(1).status(process)) for process in (0, 1)]
    assert [status.state for status in found] == [records.FINISHED, records.FINISHED]
    assert "failed: connection lost" in ended[1][1]
