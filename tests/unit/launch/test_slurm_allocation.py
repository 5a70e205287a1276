"""Devices of a SLURM allocation, from sbatch's flags; the wait for it; the job's states."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from midstream.errors import ConnectionLostError, MidstreamError, UsageError
from midstream.fleet.fleet import HostConfig, SlurmTarget
from midstream.fleet.fleet_file import parse_fleet
from midstream.launch.slurm_allocation import device_kind, requested_devices, task_flags, time_limit
from midstream.launch.slurm_job import job_flags, job_script, rank_script, short_limit
from midstream.migrate.steps import queue_wait
from midstream_core import records
from midstream_host.runs import slurm


@pytest.mark.parametrize(
    ("flags", "nodes", "processes", "devices", "kind"),
    [
        (["--nodes=2", "--gpus-per-node=8"], 2, 2, 16, ""),
        (["-N", "2", "--gres=gpu:h100:8"], 2, 2, 16, "h100"),
        (["-N2", "--gres", "gpu:4,shard:2"], 2, 2, 8, ""),
        (["--gres=gres/gpu:a100:2"], 1, 1, 2, "a100"),
        (["--nodes=4-4", "--gpus-per-node=nvidia_h100_80gb_hbm3:4"], 4, 4, 16, "nvidia_h100_80gb_hbm3"),
        (["--nodes=2", "--ntasks-per-node=4", "--gpus-per-task=1"], 2, 8, 8, ""),
        (["--ntasks=3", "--gpus-per-task=h200:2"], 3, 3, 6, "h200"),
        (["--nodes=2", "-G", "h100:6"], 2, 2, 6, "h100"),
        (["--nodes=1", "--nodes=3", "--gpus-per-node=1"], 3, 3, 3, ""),
        (["--nodes=2", "--ntasks=4", "--gpus=8"], 2, 4, 8, ""),
    ],
)
def test_flags_say_number_and_type_of_devices(
    flags: list[str], nodes: int, processes: int, devices: int, kind: str
) -> None:
    found = requested_devices("t", SlurmTarget("login", flags), HostConfig())
    assert (found.nodes, found.processes, found.devices, found.kind) == (nodes, processes, devices, kind)


def test_virtual_devices_are_those_of_each_process() -> None:
    found = requested_devices("t", SlurmTarget("login", ["--nodes=2", "--gpus-per-node=8"]), HostConfig(devices=4))
    assert (found.devices, found.kind, found.describe()) == (8, "cpu", "8 devices (cpu) on 2 nodes")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--nodes=2"], "request no GPUs"),
        (["--nodes=1-4", "--gpus-per-node=8"], "--nodes=1-4 is not one number"),
        (["--nodes=x", "--gpus-per-node=8"], "--nodes=x is not one number"),
        (["--gres=gpu:0"], "--gres=gpu:0 requests no GPU"),
        (["--gres=gpu:a100:2,gpu:h100:2"], "names several types of GPU"),
        (["--gres=shard:2"], "request no GPUs"),
        (["--gpus=4", "--ntasks-per-gpu=1"], "--ntasks-per-gpu leaves the number of its processes open"),
    ],
)
def test_flags_without_one_number_are_refused(flags: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        requested_devices("t", SlurmTarget("login", flags), HostConfig())


def test_slurm_divides_what_names_no_nodes() -> None:
    target, granted = SlurmTarget("login", ["--gpus=h100:4"]), slurm.Allocation(0.0, "n[1-2]", "p", [], 2)
    found = requested_devices("t", target, HostConfig(), granted)
    assert (found.nodes, found.processes, found.devices) == (2, 2, 4)
    named = SlurmTarget("login", ["--nodes=1", "--gpus=h100:4"])
    assert requested_devices("t", named, HostConfig(), granted).nodes == 1


@pytest.mark.parametrize(
    ("flags", "one"),
    [(["--nodes=2"], True), (["-n", "3"], True), (["--nodes=2", "--ntasks=4"], False), (["--gpus=4"], False)],
)
def test_one_task_a_node_where_flags_leave_it_open(flags: list[str], one: bool) -> None:
    """It would narrow --ntasks=4, and keep --gpus=4 on one node."""
    assert task_flags(flags) == (["--ntasks-per-node=1"] if one else [])
    assert ("--ntasks-per-node=1" in job_flags("r", "/a", flags)) is one


@pytest.mark.parametrize(
    ("flags", "partition", "seconds"),
    [
        (["--time=00:05:00"], 60.0, 300.0),
        (["-t", "1-0"], 0.0, 86400.0),
        (["--time-min=1"], 60.0, 60.0),
        ([], 60.0, 60.0),
        (["--time=UNLIMITED"], 9.0, 0.0),
    ],
)
def test_time_limit_is_that_of_flags_or_of_partition(flags: list[str], partition: float, seconds: float) -> None:
    assert time_limit(flags, slurm.Allocation(0.0, "n1", "p", [], 1, partition)) == seconds


def test_limit_below_the_lead_of_a_stop_is_said() -> None:
    assert short_limit(["--time=6:01"], None) == ""
    assert short_limit(["--time=6"], None) == (
        "its time limit is 6m00, and SLURM signals a job to save 5m00 before it: it stops before it has trained"
    )
    assert short_limit(["--time=6", "--signal=TERM@60"], None) == ""
    assert short_limit([], None) == ""


def test_kind_comes_from_the_flags_or_from_the_nodes() -> None:
    def kind(flags: list[str], *gres: str) -> str:
        found = slurm.Allocation(0.0, "n1", "p", list(gres)) if gres else None
        return device_kind(requested_devices("t", SlurmTarget("login", flags), HostConfig()), found)

    assert kind(["--gres=gpu:h100:8"], "gpu:a100:8") == "NVIDIA H100"
    assert kind(["--gpus-per-node=8"], "gpu:h100:8(S:0-1)") == "NVIDIA H100"
    assert kind(["--gpus-per-node=8"], "gpu:nvidia_h100_80gb_hbm3:8") == "NVIDIA H100 80GB HBM3"
    assert kind(["--gpus-per-node=8"], "gpu:h100:8", "gpu:a100:8") == "", "which one is not known"
    assert kind(["--gpus-per-node=8"], "gpu:8") == ""
    assert kind(["--gpus-per-node=8"]) == ""


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--array=0-3", r"targets.t.sbatch has --array .*--nodes=N"),
        ("--arr=0-3", r"targets.t.sbatch has --array .*--nodes=N"),
        ("-a0-3", r"targets.t.sbatch has --array .*--nodes=N"),
        ("-W", r"targets.t.sbatch has --wait .*when the job has ended"),
        ("--sig=KILL@60", r"targets.t.sbatch has --signal of KILL .*without saving: --signal=TERM@"),
        (":", r"targets.t.sbatch has \':\', a heterogeneous job .*--nodes=N"),
        ("--wait", r"targets.t.sbatch has --wait .*when the job has ended"),
        ("--signal=B:SIGUSR2@60", r"targets.t.sbatch has --signal of SIGUSR2 .*without saving: --signal=TERM@"),
    ],
)
def test_flag_that_no_attempt_can_have_is_refused(flag: str, message: str) -> None:
    text = f"hosts: {{a: {{type: local}}}}\ntargets: {{t: {{type: slurm, host: a, sbatch: ['{flag}']}}}}"
    with pytest.raises(UsageError, match=message):
        parse_fleet(text, "fleet.yaml")
    parse_fleet(text.replace(f"'{flag}'", "'--signal=R:TERM@60'"), "fleet.yaml")


def test_job_runs_engine_in_container_of_pyxis_or_of_the_node() -> None:
    script = job_script("/a", "python3", {}, [], SlurmTarget("login", []), ["--container-image=jax:25"])
    flags = "--export=ALL --kill-on-bad-exit=1 --container-image=jax:25"
    assert f"srun {flags} sh /a/rank.sh &" in script.splitlines()
    assert rank_script("/a", ["x"], ["docker", "a b"]).splitlines()[-1] == "exec docker 'a b' \"$@\""


# ------------------------------------------------------------------------------------------ states of a job


def states(monkeypatch: pytest.MonkeyPatch, *found: slurm.JobState) -> None:
    left = list(found)
    monkeypatch.setattr(slurm, "state", lambda job: left.pop(0) if len(left) > 1 else left[0])


def status(state: str, age: float) -> records.Status:
    return records.Status(state, 5, 0, "x", 7, 1, time.time() - age)


@pytest.mark.parametrize(
    ("job", "started", "state", "age", "running"),
    [
        ("PENDING", 0.0, None, 0.0, True),
        ("RUNNING", 0.0, records.TRAINING, 1000.0, True),  # a file system that lags is no evidence of an exit
        ("RUNNING", -1000.0, records.STOPPED, 5.0, False),  # the job ends after its engine
        ("RUNNING", -5.0, records.STOPPED, 200.0, True),  # it was requeued, and has begun again
        ("PENDING", 0.0, records.STOPPED, 5.0, True),  # it was requeued, and waits
        ("COMPLETED", 0.0, records.TRAINING, 5.0, False),
        ("TIMEOUT", 0.0, None, 0.0, False),
        ("UNKNOWN", 0.0, records.TRAINING, 5.0, True),  # the controller does not answer
        ("UNKNOWN", 0.0, records.TRAINING, 1000.0, False),
        ("UNKNOWN", 0.0, None, 0.0, False),
    ],
)
def test_attempt_runs_while_its_job_waits_or_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, started: float, state: str | None, age: float,
    running: bool,
) -> None:  # fmt: skip
    records.write_json(str(tmp_path / slurm.JOB), {"job": "17", "submitted": 0.0})
    states(monkeypatch, slurm.JobState("17", job, "None", time.time() + started))
    paths = records.AttemptPaths(str(tmp_path))
    assert slurm.is_running(paths, None if state is None else status(state, age)) is running


def test_times_are_read_whatever_slurm_means_by_never(monkeypatch: pytest.MonkeyPatch) -> None:
    now = int(time.time())
    answers = {
        "1": f"RUNNING|None|{now}|{now + 60}",
        "2": "PENDING|Priority|N/A|N/A",
        "3": f"RUNNING|None|{now}|9999999999",
    }
    monkeypatch.setattr(slurm, "run", lambda argv, *_: answers[argv[argv.index("--jobs") + 1]])
    assert slurm._query("1") == slurm.JobState("1", "RUNNING", "None", now, now + 60)
    assert slurm._query("2") == slurm.JobState("2", "PENDING", "Priority")
    assert slurm._query("3").ends == 0.0


# ------------------------------------------------------------------------------------------ the wait


class Queue:
    """The parts of a migration that the wait uses; ``answers`` are those of the login node, one for each look."""

    def __init__(self, answers: list[Any], planned: int = 4) -> None:
        self.notes: list[str] = []
        self.plan = SimpleNamespace(run_id="r", shape=SimpleNamespace(target_devices=planned))
        self.note = self.notes.append
        self.target_group = SimpleNamespace(
            target=SimpleNamespace(slurm=SlurmTarget("login"), name="cluster"),
            first=SimpleNamespace(name="login"),
            lookup_first=lambda: SimpleNamespace(root="/r", connect=lambda: None, call=lambda _: self.answer),
            paths=SimpleNamespace(attempt=lambda number: SimpleNamespace(dir=f"/r/{number}")),
        )
        self._answers = answers

    def answer(self, *_: object, **__: object) -> Any:
        found = self._answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def check_requests(self) -> None:
        pass

    def wait(self) -> None:
        queue_wait.wait_in_queue(cast(Any, self), cast(Any, self.target_group), 2)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_wait, "QUERY_INTERVAL", 0.0)


def test_wait_reports_each_reason_once_and_survives_lost_contact() -> None:
    waiting = slurm.JobState("17", "PENDING", "Priority")
    lost = ConnectionLostError("login: lost contact")
    queue = Queue([waiting, waiting, lost, lost, slurm.JobState("17", "PENDING", "Resources"),
                   slurm.JobState("17", "RUNNING", "None")])  # fmt: skip
    queue.wait()
    assert queue.notes == [
        "job 17 waits in the queue: pending (Priority)",
        "login: lost contact; the job stays in the queue",
        "job 17 waits in the queue: pending (Resources)",
        "job 17 has started on cluster",
    ]


def test_job_that_ends_in_the_queue_ends_the_wait() -> None:
    ended, none = "job 17 on cluster ended before its engine started: CANCELLED", SimpleNamespace(status=None)
    job = slurm.JobState("17", "CANCELLED", "None")
    with pytest.raises(MidstreamError, match=rf"{ended} \(None\): srun: error .*job.txt"):
        Queue([job, none, SimpleNamespace(log=["a", "srun: error"])]).wait()
    with pytest.raises(MidstreamError, match=rf"{ended} .*it had not started: scancel"):
        Queue([job, none, SimpleNamespace(log=[])]).wait()


def left(state: str) -> SimpleNamespace:
    """Return what the login node answers about an engine with a last status."""
    return SimpleNamespace(status=SimpleNamespace(state=state))


def test_job_that_slurm_forgot_is_judged_by_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """The migration's process slept, or continues after days: nothing of the job is in the queue any more."""
    unknown, none = slurm.JobState("17", "UNKNOWN", ""), SimpleNamespace(status=None)
    queue = Queue([unknown, none, unknown, left(records.TRAINING), unknown, left(records.FINISHED)])
    queue.wait()
    assert queue.notes == ["SLURM reports no job 17: it has ended, or the cluster's controller does not answer"]
    monkeypatch.setattr(queue_wait, "UNKNOWN_TIMEOUT", 0.0)
    Queue([unknown, left(records.TRAINING)]).wait()


def test_allocation_with_other_devices_than_planned_is_refused() -> None:
    queue = Queue([])
    group = cast(Any, queue.target_group)
    found = records.Status(records.WAITING, 0, 0, "x", 7, 1, 1.0, devices=[{"kind": "NVIDIA H100"}] * 3)
    with pytest.raises(MidstreamError, match=r"has 3 devices \(NVIDIA H100\), and the plan was made for 4"):
        queue_wait.check_devices(cast(Any, queue), group, found)
    queue.plan.shape.target_devices = 3
    queue_wait.check_devices(cast(Any, queue), group, found)
    assert queue.notes == ["the allocation of cluster has 3 devices (NVIDIA H100), as planned"]
