"""Events and ends of a run's job on a real Slurm cluster, and a draw of both."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from midstream.install.errors import LaunchError
from midstream_core import records
from support.migrations.campaigns import Case
from support.slurm.slurm_run import DEADLINE, SlurmRun
from support.slurm.slurm_setting import Setting

LIMIT_DEADLINE = 240.0  # seconds; SLURM looks at time limits twice a minute, and ends a job up to a minute late
SAVED, KILLED, FORGOTTEN = "saved", "killed", "forgotten by the controller, saved"
LOST = ("late", "dead", "swallowed")
SIGNALS = ("TERM", "INT", "HUP")
RECEIVERS = {"job": ("{}",), "batch": ("--batch", "{}"), "step": ("{}.0",)}


def pause(run: SlurmRun, event: Case) -> None:
    """Stop or suspend the job, then continue it."""
    words = {"STOPPED": (("scancel", "--signal=STOP"), ("scancel", "--signal=CONT")),
             "SUSPENDED": (("scontrol", "suspend"), ("scontrol", "resume"))}[event["state"]]  # fmt: skip
    run.cluster.run(*words[0], run.job)
    run.cluster.wait_state(run.job, event["state"])
    assert f"is {event['state'].lower()}: its processes do not run" in run.remark()
    run.refuses_another()
    run.cluster.run(*words[1], run.job)
    run.trains()


def requeue(run: SlurmRun, event: Case) -> None:
    """Requeue the job, held or not; it goes on as the next start."""
    before = run.look().status
    assert before is not None
    run.cluster.run("scontrol", *event["words"], run.job)
    run.refuses_another()
    run.start_now()
    run.trains(before.start + 1)


def hang(run: SlurmRun, event: Case) -> None:
    """Set down the node of a slurmd that hangs: the job starts elsewhere while its processes live."""
    before = run.look().status
    assert before is not None
    node = before.host.removeprefix("host-")
    run.signals_may_miss = True
    run.hung.add(before.host)
    run.cluster.hang(node)
    try:
        run.cluster.set_down(node)
        run.refuses_another()
        run.wait(lambda at, _: at.step > before.step + 20, "the processes of the node live")
        run.start_now()
        after = run.trains(before.start + 1)
        assert after.host != before.host
        log = Path(run.paths.attempt(run.attempt).log(0))
        end = time.monotonic() + DEADLINE
        while f"start {before.start} " not in (text := log.read_text()) and "started again" not in text:
            assert time.monotonic() < end, "the older start does not end"
            time.sleep(0.1)
    finally:
        run.cluster.revive(node)
    run.trains()


def restart_controller(run: SlurmRun, event: Case) -> None:
    """Restart slurmctld; while it is away nothing is concluded."""
    run.cluster.stop_controller(signal.Signals[event["signal"]])
    run.signals_may_miss |= event["signal"] == "SIGKILL"
    try:
        run.refuses_another()
    finally:
        run.cluster.start_controller()
    run.trains()


def save(run: SlurmRun, event: Case) -> None:
    """Send the signal to save to the job, the batch script or the step."""
    before = {(row["start"], row["saves"]) for row in run.commits.rows()}
    words = [word.format(run.job) for word in RECEIVERS[event["to"]]]
    run.cluster.run("scancel", "--signal=USR1", *words)

    def saves(*_: object) -> bool:
        return any(row["saves"] and (row["start"], row["saves"]) not in before for row in run.commits.rows())

    run.wait(saves, "saves on the signal")
    run.trains()


def lose_queue(run: SlurmRun, _event: Case) -> None:
    """Let squeue answer nothing."""
    with run.setting.lost("squeue", "dead"):
        run.refuses_another()
    run.trains()


def end_by_signal(run: SlurmRun, event: Case) -> str:
    """Send a signal to stop; the engine saves.

    SLURM may send it to the step of an earlier start: where a controller that was killed has started the job again, or
    a node that hung was set down.
    """
    words = [word.format(run.job) for word in RECEIVERS[event["to"]]]
    run.cluster.run("scancel", f"--signal={event['signal']}", *words)
    missed = run.signals_may_miss
    second = time.monotonic() + DEADLINE / 2

    def stopped(at: records.Status, running: bool) -> bool:
        nonlocal missed
        if missed and time.monotonic() > second:
            missed = False
            run.cluster.run("scancel", "--signal=TERM", run.job)
        return at.state in records.ENDED and not running

    status = run.wait(stopped, "stops")
    assert status.state == records.STOPPED, status
    return SAVED


def end_by_stop(run: SlurmRun, event: Case) -> str:
    """Stop the run as ``--stop`` does, also where answers or signals of scancel are lost."""
    if event["lost"] == "paused":
        try:
            run.cluster.run("scancel", "--signal=STOP", run.job)
        except AssertionError as error:  # a controller that was killed may refuse it as long as the job runs
            if "try again later" not in str(error):
                raise
        else:
            run.cluster.wait_state(run.job, "STOPPED")
    try:
        with run.setting.lost("scancel", event["lost"]) if event["lost"] in LOST else nullcontext():
            run.stop()
    except LaunchError as error:
        # A controller that was killed shows a paused job as waiting: 45 s later it is cancelled, and its node kills it.
        if not (run.signals_may_miss and event["lost"] == "paused" and "(CANCELLED)" in error.message):
            raise
        return KILLED
    return SAVED


def end_by_command(run: SlurmRun) -> str:
    """Stop a run whose job a killed controller has lost: no signal reaches it, and the command does.

    The node kills its processes when it reports them to the controller.
    """
    run.refuses_another()
    try:
        run.stop()
    except LaunchError as error:
        if "Killed" not in error.message and "SLURM does not know its job" not in error.message:
            raise
        return KILLED
    return FORGOTTEN


def end_by_cancel(run: SlurmRun, event: Case) -> str:
    """Cancel or kill the job."""
    run.cluster.run("scancel", *event["words"], run.job, check=False)
    status = run.wait(lambda _, running: not running, "ends")
    return SAVED if status.state == records.STOPPED else KILLED


def end_by_limit(run: SlurmRun, _event: Case) -> str:
    """Wait for the signal before the time limit or the reservation's end.

    It may come before the engine begins, or before srun has started it: then SLURM sends the next one at the limit.
    """
    end = time.monotonic() + LIMIT_DEADLINE
    while (found := run.look()).running or run.cluster.state(run.job) in ("PENDING", "RUNNING", "COMPLETING"):
        assert time.monotonic() < end, f"it does not stop at its limit: {found}\n{run.output()}"
        time.sleep(0.1)
    assert found.status is None or found.status.state == records.STOPPED, f"{found}\n{run.output()}"
    over = "s before its" in run.remark() or run.cluster.state(run.job) == "TIMEOUT"
    assert over, f"{run.remark()!r}\n{run.output()}"
    return SAVED if found.status is not None else KILLED


def end_by_node(run: SlurmRun, _event: Case) -> str:
    """Set down the node of a job that is not requeued: its processes live until slurmd answers again."""
    before = run.look().status
    assert before is not None
    node = before.host.removeprefix("host-")
    run.cluster.hang(node)
    try:
        run.cluster.set_down(node)
        run.cluster.wait_state(run.job, "NODE_FAIL")
        run.wait(lambda at, _: at.step > before.step + 20, "the processes of the node live")
        run.refuses_another()
    finally:
        run.cluster.revive(node)
    last = [0, 0.0]

    def dead(at: records.Status, _running: bool) -> bool:
        if at.step != last[0]:
            last[:] = [at.step, time.monotonic()]
        return time.monotonic() - last[1] > 3

    run.wait(dead, "the processes end when slurmd answers")
    return KILLED


LIVE: dict[str, Callable[[SlurmRun, Case], None]] = {
    "pause": pause, "requeue": requeue, "hang": hang, "controller": restart_controller, "save": save,
    "queue": lose_queue,
}  # fmt: skip
ENDINGS: dict[str, Callable[[SlurmRun, Case], str]] = {
    "signal": end_by_signal, "stop": end_by_stop, "cancel": end_by_cancel, "limit": end_by_limit,
    "node": end_by_node,
}  # fmt: skip


def draw(random_: random.Random) -> Case:
    """Draw what happens to a run."""
    end = random_.choices(list(ENDINGS), [8, 6, 6, 2, 2])[0]
    events = [_event(random_) for _ in range(random_.choice([0, 1, 1, 2]))]
    target = random_.choice(["plain", "batch"])
    found: Case = {"do": end}
    if end == "signal":
        found |= {"signal": random_.choice(SIGNALS), "to": random_.choice(list(RECEIVERS))}
    elif end == "stop":
        found |= {"lost": random_.choice(["", "paused", *LOST])}
    elif end == "cancel":
        found |= {
            "words": random_.choice([[], ["--full", "--signal=TERM"], ["--signal=KILL"], ["--full", "--signal=KILL"]])
        }
    elif end == "limit":
        target, events = random_.choice(["limit", "batch limit", "reservation"]), []
    else:
        target, events = "no requeue", [each for each in events if each["do"] not in ("hang", "requeue")]
    return {"target": target, "events": events, "end": found, "again": random_.random() < 0.4}


def _event(random_: random.Random) -> Case:
    do = random_.choices(list(LIVE), [3, 3, 3, 2, 3, 1])[0]
    if do == "pause":
        return {"do": do, "state": random_.choice(["STOPPED", "SUSPENDED"])}
    if do == "requeue":
        words = random_.choice([["requeue"], ["requeuehold"], ["requeuehold", "State=SpecialExit"]])
        return {"do": do, "words": words}
    if do == "controller":
        return {"do": do, "signal": random_.choice(["SIGTERM", "SIGKILL"])}
    if do == "save":
        return {"do": do, "to": random_.choice(list(RECEIVERS))}
    return {"do": do}


def run_case(case: Case, setting: Setting) -> str:
    """Run a case and return how it ended."""
    run = SlurmRun(setting)
    try:
        run.launch(case["target"])
        if case["end"]["do"] != "limit":  # its signal may come before the first step
            run.trains()
        try:
            for event in case["events"]:
                if run.is_known():
                    LIVE[event["do"]](run, event)
                    run.commits.check()
            ending = ENDINGS[case["end"]["do"]](run, case["end"]) if run.is_known() else end_by_command(run)
        except (AssertionError, LaunchError):
            if not run.is_ended_by_earlier_script():
                raise
            ending = KILLED
        run.commits.check()
        run.has_reason()
        if ending == SAVED and case["again"]:
            run.launch("plain")
            run.trains()
            run.commits.check()
        return ending
    finally:
        run.cluster.cancel_all()
        run.cluster.run("scontrol", "delete", "ReservationName=soon", check=False)
