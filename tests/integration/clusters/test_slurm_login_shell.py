"""A login node whose shell sets variables of SLURM's commands."""

from __future__ import annotations

import pytest

from midstream_host.runs import slurm
from simulators.clusters.slurm_cluster import why_not
from support.slurm.slurm_run import SlurmRun
from support.slurm.slurm_setting import opened

pytestmark = [
    pytest.mark.drawn,
    pytest.mark.system,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
# Filters of squeue would hide the job, scancel would ask, sbatch would make an array or lose the signal.
VARIABLES = {
    "SQUEUE_PARTITION": "high", "SQUEUE_FORMAT2": "jobid", "SCANCEL_INTERACTIVE": "1", "SCANCEL_STATE": "PENDING",
    "SBATCH_ARRAY_INX": "0-1", "SBATCH_SIGNAL": "KILL@30", "SBATCH_WAIT": "1", "SBATCH_JOB_NAME": "a name | of mine",
    "SBATCH_OPEN_MODE": "truncate", "SBATCH_TIMELIMIT": "7",
}  # fmt: skip


def test_variables_of_the_login_shell_change_no_run() -> None:
    with opened() as setting:
        login, hosts = setting.login, setting.hosts
        login.stop()
        config = login.directory / "sshd_config"
        variables = "".join(f' "{name}={value}"' for name, value in VARIABLES.items())
        config.write_text(config.read_text().replace("\n", f"{variables}\n", 1))
        login.start()
        run = SlurmRun(setting)
        run.launch("batch")
        run.trains()
        assert hosts.get("login").call(slurm.allocation)(flags=["--nodes=1"]).limit == 420
        shown = run.cluster.run("scontrol", "show", "job", run.job)
        assert "JobName=midstream-" in shown
        assert "TimeLimit=00:07:00" in shown, "a default of the user's stays one"
        run.cluster.run("scancel", "--batch", "--signal=USR1", run.job)
        run.wait(lambda *_: any(row["saves"] for row in run.commits.rows()), "its script passes signals on")
        run.stop()
        assert run.cluster.wait_state(run.job, "COMPLETED", "CANCELLED") == "COMPLETED"
        run.commits.check()
