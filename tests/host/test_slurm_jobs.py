"""Jobs of Slurm, by stand-ins for its commands: those of another cluster, and a controller that does not answer."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from midstream.fleet.fleet import SlurmTarget
from midstream.launch.slurm_job import FORWARD, job_script
from midstream_core import records
from midstream_host.runs import run_state, slurm
from midstream_host.runs.slurm_commands import SlurmError
from midstream_host.runs.slurm_submission import submit

COMMANDS = {
    "sbatch": "echo '17;other'",
    # The login node's own job 17 is another user's, and has ended.
    "squeue": """if [ -e "$DOWN" ]; then
    echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2; exit 1
fi
case "$*" in
*"--clusters other"*) echo CLUSTER: other; echo "RUNNING|None|$(date +%s)|N/A" ;;
*) echo "COMPLETED|None|N/A|N/A" ;;
esac""",
    # The accounting of a cluster without a database: of a job that was requeued, its first end.
    "sacct": 'case "$*" in *--completion*) echo "PREEMPTED|0:0" ;; *) exit 1 ;; esac',
    "scancel": 'echo "$*" >> "$LOG_OF_SCANCEL"',
}


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> records.AttemptPaths:
    for name, script in COMMANDS.items():
        file = tmp_path / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LOG_OF_SCANCEL", str(tmp_path / "scancel"))
    monkeypatch.setenv("DOWN", str(tmp_path / "down"))
    monkeypatch.setattr(slurm, "_cached", {})
    monkeypatch.setattr(slurm, "_unanswered_until", 0.0)
    made = records.RunPaths(str(tmp_path), "run").attempt(1)
    os.makedirs(made.dir)
    return made


def test_job_of_another_cluster_is_looked_up_there(attempt: records.AttemptPaths, tmp_path: Path) -> None:
    job = submit(attempt, ["--clusters=other"], "#!/bin/sh\n", "#!/bin/sh\n")
    assert job == slurm.job_of(attempt) == "17;other"
    found = slurm.state(job)
    assert (found.state, found.runs) == ("RUNNING", True)
    assert found.started > time.time() - 60
    assert slurm.is_running(attempt, None)
    assert not slurm.ended_before_status(attempt)
    assert slurm.signal_job(job, "SIGTERM", begun=True)
    assert slurm.signal_job(job, "SIGTERM", begun=False)
    assert (tmp_path / "scancel").read_text().splitlines() == [
        "--clusters other --signal TERM 17",
        "--clusters other 17",
    ]


def test_controller_without_an_answer_ends_no_job(
    attempt: records.AttemptPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(attempt, ["--clusters=other"], "#!/bin/sh\n", "#!/bin/sh\n")
    (tmp_path / "down").touch()
    assert slurm.state(job) == slurm.JobState(job, "UNKNOWN", slurm.NO_ANSWER)
    monkeypatch.setattr(slurm, "CACHE_TIME", -1.0)
    (tmp_path / "down").unlink()
    monkeypatch.setattr(slurm, "_unanswered_until", 0.0)
    assert slurm.state(job).runs
    (tmp_path / "down").touch()
    assert slurm.state(job).runs, "the last known state stays"
    assert not slurm.ended_before_status(attempt)


def stand_in(directory: Path, name: str, script: str) -> None:
    file = directory / "bin" / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def test_job_is_recorded_though_sbatch_reports_an_error(attempt: records.AttemptPaths, tmp_path: Path) -> None:
    """The controller accepts a job and answers too late: sbatch times out."""
    stand_in(tmp_path, "squeue", f'[ ! -e {tmp_path}/accepted ] || echo "21|PENDING|{attempt.dir}/job.sh"')
    late = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    stand_in(tmp_path, "sbatch", f"touch {tmp_path}/accepted; echo '{late}' >&2; exit 1")
    assert submit(attempt, ["--nodes=1"], "#!/bin/sh\n", "#!/bin/sh\n") == "21"
    assert slurm.job_of(attempt) == "21"
    os.unlink(f"{attempt.dir}/{slurm.JOB}")
    stand_in(tmp_path, "squeue", 'echo "21|RUNNING|/elsewhere/runs/other/attempts/001/job.sh"')
    with pytest.raises(SlurmError, match="Socket timed out"):
        submit(attempt, [], "#!/bin/sh\n", "#!/bin/sh\n")
    assert slurm.job_of(attempt) is None


def test_job_without_a_record_is_cancelled(attempt: records.AttemptPaths, tmp_path: Path) -> None:
    """A submission was killed after sbatch: its job waits, and no record names it."""
    stand_in(tmp_path, "squeue", f'echo "21|PENDING|/another/view/{"/".join(attempt.dir.split("/")[-4:])}/job.sh"')
    stand_in(tmp_path, "sbatch", "echo 22")
    assert submit(attempt, [], "#!/bin/sh\n", "#!/bin/sh\n") == "22"
    assert (tmp_path / "scancel").read_text().split() == ["21"]


@pytest.mark.parametrize(("record", "starts"), [("17", True), ("17;other", True), ("171", False), ("7", False)])
def test_only_the_recorded_job_starts_an_engine(
    attempt: records.AttemptPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: str, starts: bool
) -> None:
    records.write_json(f"{attempt.dir}/{slurm.JOB}", {"job": record, "submitted": 17.0})
    Path(f"{attempt.dir}/rank.sh").touch()
    stand_in(tmp_path, "srun", f'echo "$SRUN_CPUS_PER_TASK $A $*" > {tmp_path}/started')
    for name, value in {"SLURM_JOB_ID": "17", "SLURM_CPUS_PER_TASK": "4", "SLURMD_NODENAME": "localhost"}.items():
        monkeypatch.setenv(name, value)
    python = shutil.which("python3") or "python3"
    script = job_script(attempt.dir, python, {"A": "a"}, [], SlurmTarget("login", []))
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    if starts:
        words = (tmp_path / "started").read_text().split()
        assert words[:2] == ["4", "a"], "srun of 22.05 and later does not read SLURM_CPUS_PER_TASK"
        assert "--export=ALL" in words, "sbatch's --export=NONE would leave the engine without its variables"
    else:
        assert (done.returncode, (tmp_path / "started").exists()) == (1, False)
        assert "names another job: job 17 ends" in done.stderr


def test_helper_ends_with_a_script_that_is_not_waited_for(tmp_path: Path) -> None:
    nap = FORWARD[FORWARD.index("nap() {") :].partition("\n}\n")[0]
    wait = "until grep -q '^State:.Z' /proc/$$/status; do sleep 0.01; done"
    write = f"echo $? > {tmp_path}/code; mv {tmp_path}/code {tmp_path}/ended"
    script = f"{nap}\n}}\n( {wait}; nap 100; {write} ) >/dev/null 2>&1 &"
    with subprocess.Popen(["sh", "-c", script]):  # a zombie until the block ends
        deadline = time.monotonic() + 30
        while not (tmp_path / "ended").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert (tmp_path / "ended").read_text() == "1\n"


def test_job_of_another_script_has_only_the_same_id(attempt: records.AttemptPaths, tmp_path: Path) -> None:
    """A controller that has lost its state counts from 1 again: the id may be that of another run."""
    stand_in(tmp_path, "sbatch", "echo 17")
    submit(attempt, [], "#!/bin/sh\n", "#!/bin/sh\n")
    stand_in(tmp_path, "squeue", f'echo "RUNNING|None|$(date +%s)|N/A||{attempt.dir}/job.sh|a|b"')
    assert slurm.is_running(attempt, None)
    slurm._cached.clear()
    stand_in(tmp_path, "squeue", 'echo "RUNNING|None|$(date +%s)|N/A||/root/runs/other/attempts/001/job.sh|x"')
    assert slurm.described(attempt) == slurm.JobState("17", slurm.UNKNOWN, slurm.ANOTHER)
    assert not slurm.is_running(attempt, None)
    assert not run_state.signal(str(tmp_path), "run", 1, "SIGTERM")
    assert not (tmp_path / "scancel").exists(), "it is not that of the run"


def test_submitted_job_may_wait_while_nothing_answers(
    attempt: records.AttemptPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, "sbatch", "echo 17")
    submit(attempt, [], "#!/bin/sh\n", "#!/bin/sh\n")
    (tmp_path / "down").touch()
    assert slurm.is_running(attempt, None), "a second attempt must not start"
    slurm._cached.clear()
    monkeypatch.setattr(slurm, "_unanswered_until", 0.0)
    monkeypatch.setenv("PATH", "/none")
    assert not slurm.is_running(attempt, None), "a machine without SLURM has the record of another machine's job"


def test_signal_that_slurm_does_not_accept_is_an_error(
    attempt: records.AttemptPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, "sbatch", "echo 17")
    submit(attempt, [], "#!/bin/sh\n", "#!/bin/sh\n")
    refusal = "scancel: error: Kill job error on job id 17: Unable to contact slurm controller"
    stand_in(tmp_path, "scancel", f"echo '{refusal}' >&2; exit 1")
    (tmp_path / "down").touch()
    with pytest.raises(SlurmError, match="Unable to contact"):
        run_state.signal(str(tmp_path), "run", 1, "SIGTERM")
    (tmp_path / "down").unlink()
    slurm._cached.clear()
    monkeypatch.setattr(slurm, "_unanswered_until", 0.0)
    assert not run_state.signal(str(tmp_path), "run", 1, "SIGTERM"), "its job has ended"


def test_slow_controller_delays_no_report(
    attempt: records.AttemptPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A squeue without an answer once hid the login node with all of its runs."""
    answer = 'echo "RUNNING|None|$(date +%s)|N/A|"'
    stand_in(tmp_path, "squeue", f"until [ -e {tmp_path}/go ]; do sleep 0.05; done; {answer}")
    monkeypatch.setattr(slurm, "ANSWER_TIMEOUT", 0.05)
    monkeypatch.setattr(slurm, "_background", None)
    slurm.query_in_background()
    for job in ("17", "18"):
        assert slurm.state(job) == slurm.JobState(job, slurm.UNKNOWN, slurm.NO_ANSWER)
    (tmp_path / "go").touch()
    end = time.monotonic() + 60
    while not (slurm.state("17").runs and slurm.state("18").runs):
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("name", "script", "its"),
    [
        ("midstream-run", "/var/spool/wrapper/copy-17.sh", True),  # a cluster's own sbatch submits a copy
        ("midstream-run", "/root/runs/run/attempts/002/job.sh", False),
        ("midstream-runs", "/var/spool/wrapper/copy-17.sh", False),
        ("anything", "/home/me/other.sh", False),
    ],
)
def test_copy_of_the_script_is_recognised_by_its_name(
    attempt: records.AttemptPaths, tmp_path: Path, name: str, script: str, its: bool
) -> None:
    stand_in(tmp_path, "sbatch", "echo 17")
    submit(attempt, [], "#!/bin/sh\n", "#!/bin/sh\n")
    stand_in(tmp_path, "squeue", f'echo "RUNNING|None|$(date +%s)|N/A||{script}|{name}"')
    assert slurm.is_running(attempt, None) is its
    assert run_state.signal(str(tmp_path), "run", 1, "SIGTERM") is its
    assert (tmp_path / "scancel").exists() is its


@pytest.mark.parametrize(("name", "its"), [("wrap", False), ("midstream-run", True), ("a name|with words", False)])
def test_job_without_a_script_is_signalled_by_its_name_alone(
    attempt: records.AttemptPaths, tmp_path: Path, name: str, its: bool
) -> None:
    """As of ``sbatch --wrap``: it may be the attempt's, or another job of the same user that has its id now."""
    stand_in(tmp_path, "sbatch", "echo 17")
    submit(attempt, [], "#!/bin/sh\n", "#!/bin/sh\n")
    stand_in(tmp_path, "squeue", f'echo "RUNNING|None|$(date +%s)|N/A||(null)|{name}"')
    assert slurm.is_running(attempt, None), "no second engine beside it"
    assert run_state.signal(str(tmp_path), "run", 1, "SIGTERM") is its
    assert (tmp_path / "scancel").exists() is its


def test_late_job_has_the_cluster_that_accepted_it(attempt: records.AttemptPaths, tmp_path: Path) -> None:
    lines = f"CLUSTER: a\\n7|RUNNING|/x/other.sh\\n\\nCLUSTER: b\\n7|STOPPED|{attempt.dir}/job.sh"
    stand_in(tmp_path, "squeue", f'[ ! -e {tmp_path}/accepted ] || printf "{lines}\\n"')
    stand_in(tmp_path, "sbatch", f"touch {tmp_path}/accepted; echo 'sbatch: error: timed out' >&2; exit 1")
    assert submit(attempt, ["--clusters=a,b"], "#!/bin/sh\n", "#!/bin/sh\n") == "7;b"
    assert slurm.job_of(attempt) == "7;b"


@pytest.mark.parametrize("text", ['{"job": "-u"}', '{"job": "17 18"}', '{"job": "1\\u0000"}', '{"a": 1}', "[17]", "{}"])
def test_record_without_a_job_is_damage(attempt: records.AttemptPaths, tmp_path: Path, text: str) -> None:
    """Given to scancel, "-u" would be a flag; any other error would end the reports of all runs."""
    Path(f"{attempt.dir}/{slurm.JOB}").write_text(text)
    with pytest.raises(records.DamagedRecordError, match="names no job"):
        run_state.signal(str(tmp_path), "run", 1, "SIGTERM")
    assert not (tmp_path / "scancel").exists()


def test_failed_query_ends_no_thread(attempt: records.AttemptPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    query = slurm._query

    def fail_once(job: str) -> slurm.JobState:
        monkeypatch.setattr(slurm, "_query", query)
        raise MemoryError

    monkeypatch.setattr(slurm, "_query", fail_once)
    monkeypatch.setattr(slurm, "_background", None)
    slurm.query_in_background()
    assert slurm.state("17;other") == slurm.JobState("17;other", slurm.UNKNOWN, slurm.NO_ANSWER)
    assert slurm.state("17;other").runs
