"""Jobs of Slurm, by stand-ins for its commands: those of another cluster, and a controller that does not answer."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from midstream.remote.runs import slurm
from midstream_engine import records

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
    "scancel": 'echo "$*" >> "$SCANCEL_LOG"',
}


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> records.AttemptPaths:
    for name, script in COMMANDS.items():
        file = tmp_path / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SCANCEL_LOG", str(tmp_path / "scancel"))
    monkeypatch.setenv("DOWN", str(tmp_path / "down"))
    monkeypatch.setattr(slurm, "_cached", {})
    made = records.RunPaths(str(tmp_path), "run").attempt(1)
    os.makedirs(made.dir)
    return made


def test_job_of_another_cluster_is_looked_up_there(attempt: records.AttemptPaths, tmp_path: Path) -> None:
    job = slurm.submit(attempt, ["--clusters=other"], "#!/bin/sh\n", "#!/bin/sh\n", {})
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
    job = slurm.submit(attempt, ["--clusters=other"], "#!/bin/sh\n", "#!/bin/sh\n", {})
    (tmp_path / "down").touch()
    assert slurm.state(job) == slurm.JobState(job, "UNKNOWN", slurm.NO_ANSWER)
    monkeypatch.setattr(slurm, "CACHE_TIME", -1.0)
    (tmp_path / "down").unlink()
    assert slurm.state(job).runs
    (tmp_path / "down").touch()
    assert slurm.state(job).runs, "the last known state stays"
    assert not slurm.ended_before_status(attempt)
