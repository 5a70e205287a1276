"""States of Slurm's jobs: the table of the docs, words of newer versions, time limits, what is said of a job."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from midstream_core import records
from midstream_host.runs import job_remark, slurm, slurm_states
from midstream_host.runs.slurm_commands import SlurmError
from midstream_host.runs.slurm_states import KINDS, JobState, seconds_of
from support.paths import REPOSITORY

# The words of "JOB STATE CODES" in the manual of squeue 22.05.
SQUEUE = """
    BOOT_FAIL CANCELLED COMPLETED CONFIGURING COMPLETING DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PENDING PREEMPTED
    RUNNING RESV_DEL_HOLD REQUEUE_FED REQUEUE_HOLD REQUEUED RESIZING REVOKED SIGNALING SPECIAL_EXIT STAGE_OUT STOPPED
    SUSPENDED TIMEOUT
"""


def test_table_of_the_docs_is_that_of_the_code() -> None:
    page = (
        (REPOSITORY / "docs/how-to/slurm-jobs.md").read_text().split("## What a job's state means")[1].split("\n\n")[1]
    )
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines()[2:]]
    assert {row[0]: row[1] for row in rows} == KINDS
    assert set(SQUEUE.split()) <= set(KINDS)


@pytest.mark.parametrize("word", ["EXPEDITING", "LAUNCH_FAILED", "INVALID", "?", "STOPPED", "SUSPENDED", "REVOKED"])
def test_word_that_is_no_end_may_be_a_running_job(word: str) -> None:
    job = JobState("17", word, "None")
    assert (job.runs, job.waits, job.ended) == (True, False, False)
    assert word.lower() in job.describe().lower()


def test_completing_job_waits_where_it_is_requeued() -> None:
    now = time.time()
    assert JobState("17", "COMPLETING", "None", now, now + 300).waits
    assert JobState("17", "COMPLETING", "None", now, 0.0).waits, "a job without a time limit"
    ended = JobState("17", "COMPLETING", "None", now - 9, now - 2)
    assert (ended.waits, ended.runs) == (False, True)


def test_held_job_waits_and_an_unknown_one_does_nothing() -> None:
    for word in ("RESV_DEL_HOLD", "SPECIAL_EXIT", "REQUEUE_HOLD"):
        assert JobState("17", word, "held").waits
    lost = JobState("17", slurm.UNKNOWN, "")
    assert (lost.runs, lost.waits, lost.ended, lost.describe()) == (False, False, False, "")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 300), ("5:30", 330), ("1:00:00", 3600), ("2-12", 216000), ("1-0:30", 88200), ("1-00:00:05", 86405),
     ("UNLIMITED", 0), ("infinite", 0), ("n/a", 0), ("", 0), ("1:2:3:4", 0), ("-5", 0)],
)  # fmt: skip
def test_time_limits_in_the_forms_of_slurm(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> records.AttemptPaths:
    """An attempt with job 17; the commands of Slurm print what is in the files ``squeue`` and ``scontrol``."""
    for name in ("squeue", "scontrol"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\ncat {tmp_path}/{name}\n")
        program.chmod(0o755)
    log = tmp_path / "scancel"
    (tmp_path / "bin/scancel").write_text(f'#!/bin/sh\necho "$*" >> {log}\n')
    (tmp_path / "bin/scancel").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "_cached", {})
    monkeypatch.setattr(slurm, "CACHE_TIME", -1.0)
    made = records.RunPaths(str(tmp_path), "run").attempt(1)
    os.makedirs(made.dir)
    records.write_json(f"{made.dir}/{slurm.JOB}", {"job": "17", "submitted": 17.0})
    return made


def status(state: str, age: float = 0.0) -> records.Status:
    return records.Status(state, 3, 0, "other", 1, 1, time.time() - age)


def test_end_of_a_reservation_comes_before_the_time_limit(attempt: records.AttemptPaths, tmp_path: Path) -> None:
    now = int(time.time())
    shown = f"ReservationName=soon StartTime={now} EndTime={now + 600} Duration=00:10:00 Flags={{}} State=ACTIVE\n"
    (tmp_path / "squeue").write_text(f"RUNNING|None|{now}|{now + 3600}|soon|/x/job.sh|midstream-run\n")
    (tmp_path / "scontrol").write_text(shown.format("SPEC_NODES"))
    found = slurm.state("17")
    assert (found.ends, found.limit) == (now + 600, "the end of its reservation soon")
    (tmp_path / "scontrol").write_text(shown.format("FLEX,SPEC_NODES"))
    found = slurm.state("17")
    assert (found.ends, found.limit) == (now + 3600, "its time limit"), "a flexible reservation ends no job"
    (tmp_path / "squeue").write_text(f"RUNNING|None|{now}|N/A|soon|/x/job.sh|midstream-run\n")
    (tmp_path / "scontrol").write_text(shown.format(""))
    assert slurm.state("17").ends == now + 600, "a job without a time limit"


def test_failed_node_proves_no_end_of_processes(attempt: records.AttemptPaths, tmp_path: Path) -> None:
    (tmp_path / "squeue").write_text("NODE_FAIL|None|1|2||/x/job.sh|midstream-run\n")
    assert slurm.is_running(attempt, status(records.TRAINING))
    assert not slurm.is_running(attempt, status(records.TRAINING, age=100))
    assert not slurm.is_running(attempt, status(records.STOPPED))
    (tmp_path / "squeue").write_text("FAILED|None|1|2||/x/job.sh|midstream-run\n")
    assert not slurm.is_running(attempt, status(records.TRAINING))


def test_signal_of_a_paused_job(attempt: records.AttemptPaths, tmp_path: Path) -> None:
    (tmp_path / "squeue").write_text("STOPPED|None|1|N/A||/x/job.sh|midstream-run\n")
    assert slurm.signal_job("17", "SIGTERM", begun=True)
    assert (tmp_path / "scancel").read_text().splitlines() == ["--signal TERM 17", "--signal CONT 17"]
    (tmp_path / "squeue").write_text("SUSPENDED|None|1|N/A||/x/job.sh|midstream-run\n")
    with pytest.raises(SlurmError, match=r"is suspended.*scontrol resume 17.*it gets no signal"):
        slurm.signal_job("17", "SIGTERM", begun=True)


def test_waiting_job_whose_engine_runs_is_not_cancelled(attempt: records.AttemptPaths, tmp_path: Path) -> None:
    """A controller that was killed has forgotten that the job runs: the engine gets the command, and can save."""
    (tmp_path / "squeue").write_text("PENDING|None|1|N/A||/x/job.sh|midstream-run\n")
    assert not slurm.signal_job("17", "SIGTERM", begun=True, running=True)
    assert not (tmp_path / "scancel").exists()
    assert slurm.signal_job("17", "SIGKILL", begun=True, running=True)
    assert slurm.signal_job("17", "SIGTERM", begun=True)
    assert (tmp_path / "scancel").read_text().splitlines() == ["17", "17"]


OUTPUT = """\
midstream: job starts on a
slurmstepd: error: *** JOB 17 ON a CANCELLED AT X DUE TO JOB REQUEUE ***
midstream: job starts on b
"""
TIMEOUT = "slurmstepd: error: *** JOB 17 ON b CANCELLED AT X DUE TO TIME LIMIT ***"


@pytest.mark.parametrize(
    ("answer", "state", "output", "said"),
    [
        ("PENDING|Resources", records.TRAINING, "", "job 17 waits in the queue: pending (Resources)"),
        ("TIMEOUT|TimeLimit", records.TRAINING, "", "job 17 has ended: timeout (TimeLimit)"),
        (
            "FAILED|NonZeroExitCode",
            records.TRAINING,
            OUTPUT + "midstream: job 17 ended 3 s before",
            "job 17 has ended: failed (NonZeroExitCode); job 17 ended 3 s before",
        ),
        ("FAILED|NonZeroExitCode", records.TRAINING, OUTPUT, "job 17 has ended: failed (NonZeroExitCode)"),
        ("EXPEDITING|None", records.TRAINING, "", "job 17 is in the state EXPEDITING, and may run"),
        ("RUNNING|None", records.TRAINING, OUTPUT + TIMEOUT, ""),
        ("COMPLETED|None", records.STOPPED, OUTPUT, ""),
        ("COMPLETED|None", records.STOPPED, OUTPUT + TIMEOUT, ""),
        ("COMPLETED|None", records.STOPPED, OUTPUT + "midstream: job 17 ended 3 s before", "job 17 ended 3 s before"),
        ("", records.STOPPED, OUTPUT + "midstream: job 17 ended 3 s before\nx", "job 17 ended 3 s before"),
        ("", records.FINISHED, OUTPUT + "midstream: job 17 ended 3 s before", ""),
        ("", records.TRAINING, OUTPUT + TIMEOUT, TIMEOUT),
        ("", records.TRAINING, OUTPUT, ""),
    ],
)
def test_remark_says_why_a_job_waits_or_has_ended(
    attempt: records.AttemptPaths, tmp_path: Path, answer: str, state: str, output: str, said: str
) -> None:
    (tmp_path / "squeue").write_text(f"{answer}|1|2||/x/job.sh|midstream-run\n" if answer else "")
    Path(attempt.dir, slurm.OUTPUT).write_text(output)
    assert job_remark.remark(attempt, status(state, age=100)) == said


def test_states_are_listed_once_and_in_words_of_slurm() -> None:
    assert all(re.fullmatch(r"[A-Z_]+", word) for word in KINDS)
    kinds = {slurm_states.WAITS, slurm_states.RUNS, slurm_states.PAUSED, slurm_states.ELSEWHERE, slurm_states.ENDED}
    assert set(KINDS.values()) == kinds
