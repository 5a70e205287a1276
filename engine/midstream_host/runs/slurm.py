"""Jobs of SLURM: query, signal. `slurm_submission` submits them.

Runs on the login node; standard library only.

An attempt that is a job has ``slurm.json`` (``{job, submitted}``) in its directory. Its processes run on other machines
that share the file system: the state of the job shows whether they run. A job of another cluster (``sbatch -M``) is
``ID;CLUSTER``, as sbatch prints it: the login node's own cluster may have a job of the same id.
"""

from __future__ import annotations

import dataclasses
import os
import posixpath
import queue
import re
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple, cast

from midstream_core import records
from midstream_host.declarations import reads
from midstream_host.runs.slurm_commands import TIMES, MissingError, SlurmError, done, named, run, words_of
from midstream_host.runs.slurm_states import NODE_FAIL, UNKNOWN, JobState, seconds_of

JOB = "slurm.json"
OUTPUT = "job.txt"  # of the job's script
SCRIPT = "job.sh"
QUERY_TIMEOUT = 25.0  # seconds for each of two commands: a call of the operator's machine takes 60 at most
HEARTBEAT_TIMEOUT = 60.0  # seconds; file systems may lag
CACHE_TIME = 10.0  # seconds for which a job's state is cached
ENDED_CACHE_TIME = 60.0  # seconds, where it is only shown: a job that has ended may be requeued
ANSWER_TIMEOUT = 4.0  # seconds that a report waits for an answer of SLURM
FOREVER = 10 * 366 * 86400.0  # seconds: the end of a job without a time limit is later
# scancel sends SIGTERM before SIGKILL, on which the engine would save. This signal ends it at once, without a core.
KILL = "ALRM"
NOT_KNOWN = "Invalid job id"  # in squeue's words: the controller has answered
SCRIPT_OF_ATTEMPT = re.compile(r"/runs/[^/]+/attempts/[^/]+/job\.sh\s*$")
JOB_ID = re.compile(r"[0-9][\w+.-]*(;[\w.-]+)?")  # and its cluster
NO_ANSWER = "the controller does not answer"  # reason of an unknown state
ANOTHER = "its id is now that of another job"  # the same, where the controller has begun to count again


@dataclasses.dataclass(frozen=True)
class Allocation:
    """Allocation that SLURM would make to a job now.

    ``gres``: generic resources of each kind of node.
    """

    starts: float  # UTC seconds
    nodes: str
    partition: str
    gres: List[str]
    count: int = 0  # of the nodes; 0: not known
    limit: float = 0.0  # seconds of the time limit that the partition gives a job without one; 0: none, or not known


_cached: Dict[str, Tuple[float, JobState]] = {}
_unanswered_until = 0.0  # monotonic seconds: until then a controller that did not answer is not queried


class PausedJobError(SlurmError):
    """A job is suspended: it gets no signal."""


def job_of(path: records.AttemptPaths) -> Optional[str]:
    """Id of the attempt's job; None where it is no job.

    Raises DamagedRecordError.
    """
    file = posixpath.join(path.dir, JOB)
    value = records.read_json_or_none(file)
    if value is None:
        return None
    job = str(cast(Dict[str, Any], value).get("job")) if isinstance(value, dict) else ""
    if not JOB_ID.fullmatch(job):  # scancel would read it as a flag, or a shorter list of jobs
        raise records.DamagedRecordError("{}: it names no job".format(file))
    return job


def state(job: str) -> JobState:
    """Return the state of a job: from the queue, then from the accounting.

    A job that neither has is ``UNKNOWN``. A controller that does not answer is no evidence: the last known state of a
    job that waits or runs stays. After `query_in_background` the result is the newest state that has been found.
    """
    cached = _cached.get(job)
    if cached is not None and time.monotonic() - cached[0] <= CACHE_TIME:
        return cached[1]
    return _background.state(job) if _background is not None else _look(job)


def _look(job: str) -> JobState:
    cached = _cached.get(job)
    now = _query(job)
    if now.reason == NO_ANSWER and cached is not None and (cached[1].waits or cached[1].runs):
        now = cached[1]
    _cached[job] = (time.monotonic(), now)
    return now


def query_in_background() -> None:
    """Query SLURM in a thread from now on.

    A slow controller then delays no report of this process.
    """
    global _background
    _background = _background or _Background()


class _Background:
    """A thread that looks at jobs, one after the other."""

    def __init__(self) -> None:
        self._requested: "queue.Queue[str]" = queue.Queue()
        self._open: Set[str] = set()  # requested, and not answered
        self._answered = threading.Condition()
        self._late = False  # the last wait was for nothing: until an answer comes, there is no other
        threading.Thread(target=self._run, daemon=True).start()

    def state(self, job: str) -> JobState:
        cached = _cached.get(job)
        if cached is not None and cached[1].ended and time.monotonic() - cached[0] < ENDED_CACHE_TIME:
            return cached[1]
        with self._answered:
            if job not in self._open:
                self._open.add(job)
                self._requested.put(job)
            if not self._late:
                self._late = not self._answered.wait_for(lambda: job not in self._open, ANSWER_TIMEOUT)
        cached = _cached.get(job)
        return cached[1] if cached is not None else JobState(job, UNKNOWN, NO_ANSWER)

    def _run(self) -> None:
        while True:
            job = self._requested.get()
            try:
                _look(job)
            except Exception as error:  # noqa: BLE001  without this thread old states would be reported for ever
                sys.excepthook(type(error), error, error.__traceback__)
            finally:
                with self._answered:
                    self._open.discard(job)
                    self._late = False
                    self._answered.notify_all()


_background: Optional[_Background] = None


def forget() -> None:
    """Forget answers of the controller, and that it did not answer."""
    global _unanswered_until
    _cached.clear()
    _unanswered_until = 0.0


def _query(job: str) -> JobState:
    number, cluster = named(job)
    history = [*cluster, "--noheader", "--parsable2", "--jobs", number, "--format", "State,ExitCode"]
    why = ""
    global _unanswered_until
    if time.monotonic() < _unanswered_until:
        return JobState(job, UNKNOWN, NO_ANSWER)
    for argv in (
        ["squeue", *cluster, "--noheader", "--states", "all", "--jobs", number, "--format", "%T|%r|%S|%e|%v|%o|%j"],
        ["sacct", "--allocations", *history],
        ["sacct", "--completion", *history],  # the file of a cluster without a database
    ):
        if why and "--completion" in argv:
            break  # of a job that was requeued, and waits, it has the end before
        try:
            answer = run(argv, TIMES, QUERY_TIMEOUT)
        except SlurmError as error:  # squeue drops ended jobs after some minutes; not every cluster has accounting
            if argv[0] == "squeue" and NOT_KNOWN not in str(error) and not isinstance(error, MissingError):
                why = NO_ANSWER
            continue
        lines = [line for line in answer.strip().splitlines() if not line.startswith("CLUSTER:")]
        if lines:  # of a requeued job, the accounting has a line for each time that it ran
            word, reason, started, ends, held, script, name = [*lines[-1].split("|", 6), *[""] * 6][:7]
            if word.split():
                state = JobState(job, word.split()[0], reason, _time(started), _time(ends), script, name)
                return _limited_by_reservation(state, held, cluster) if held not in ("", "(null)") else state
    if why:  # several jobs in one call: each would wait as long
        _unanswered_until = time.monotonic() + CACHE_TIME
    return JobState(job, UNKNOWN, why)


def _limited_by_reservation(job: JobState, name: str, cluster: Sequence[str]) -> JobState:
    """Return the job with its reservation's end where that comes first.

    The end time of squeue ignores it. A job in a flexible reservation goes on after it. Where SLURM does not answer,
    the time limit stays.
    """
    if job.ended:
        return job
    try:
        shown = run(["scontrol", *cluster, "--oneliner", "show", "reservation", name], TIMES, QUERY_TIMEOUT)
    except SlurmError:
        return job
    words = {key: value for key, _, value in (word.partition("=") for word in shown.split())}
    end = _time(words.get("EndTime", ""))
    if not end or "FLEX" in words.get("Flags", "").split(",") or 0 < job.ends <= end:
        return job
    return dataclasses.replace(job, ends=end, reservation=name)


def _time(text: str) -> float:
    """Return the UTC seconds of a time as `TIMES` prints it; 0 for N/A and never.

    SLURM prints a date far in the future for never.
    """
    seconds = float(text) if re.fullmatch(r"[0-9]{1,12}", text.strip()) else 0.0
    return seconds if seconds < time.time() + FOREVER else 0.0


def is_script_of(script: str, path: records.AttemptPaths) -> bool:
    """Return whether a job's script is that of the attempt.

    The path of its root may be another one.
    """
    words = posixpath.join(path.dir, SCRIPT).split("/")[-5:]  # runs/RUN/attempts/NUMBER/job.sh
    return script.strip().split("/")[-5:] == words


def name_of(run_id: str) -> str:
    """Name of a run's jobs, where the flags of sbatch give no other."""
    return "midstream-" + run_id


def described(path: records.AttemptPaths) -> Optional[JobState]:
    """Return the state of an attempt's job; None where the attempt is no job.

    The state is ``UNKNOWN`` where another job has the id now: a controller that has lost its state counts from 1 again.
    The other job's script and name both differ: a cluster's own sbatch may submit a copy of the script.
    """
    job = job_of(path)
    job_state = None if job is None else state(job)
    if job_state is None or not job_state.script.startswith("/") or is_script_of(job_state.script, path):
        return job_state
    run_id = posixpath.basename(posixpath.dirname(posixpath.dirname(path.dir)))
    if job_state.name == name_of(run_id) and not SCRIPT_OF_ATTEMPT.search(job_state.script):
        return job_state
    return JobState(job_state.job, UNKNOWN, ANOTHER)


def is_running(path: records.AttemptPaths, status: Optional[records.Status]) -> bool:
    """Return whether a process of the attempt runs on the cluster, or will run.

    Evidence is a job that waits or may run. Where the last status says that the process has ended, the job has to wait
    again, or to have started since: it was requeued. Of a job that SLURM does not know, or whose nodes have failed, a
    fresh heartbeat is evidence. A job without a status, of which the controller says nothing, may wait in the queue.
    """
    job = described(path)
    if job is None:
        return False
    if job.waits or status is None:
        return job.waits or job.runs or job.reason == NO_ANSWER
    if job.runs:
        return status.state not in records.ENDED or job.started > status.heartbeat
    return job.state in (UNKNOWN, NODE_FAIL) and may_live(status)


def may_live(status: records.Status) -> bool:
    """Return whether the last status is fresh, and no end."""
    return status.state not in records.ENDED and time.time() - status.heartbeat < HEARTBEAT_TIMEOUT


def ended_before_status(path: records.AttemptPaths) -> bool:
    """Return whether the attempt's job has ended, as SLURM reports.

    Return False where SLURM does not know the job.
    """
    job = described(path)
    return job is not None and job.ended


def signal_job(job: str, name: str, begun: bool, running: bool = False) -> bool:
    """Signal the job's processes; return whether a signal can reach them.

    A job is cancelled where it waits in the queue or its engine has not ``begun``: then no process gets the signal, and
    there is nothing to save. ``running``: the engine's last status is fresh and no end. A controller that was killed
    may have such a job wait in its queue: cancelled, its node would kill the engine before that can save.

    Raises SlurmError where SLURM did not accept it: the job may run on.
    """
    _cached.pop(job, None)
    number, cluster = named(job)
    argvs: List[List[str]] = [["scancel", *cluster, number]]
    now = state(job)
    if now.waits and running and name != "SIGKILL":
        return False
    if begun and not now.waits:
        kill = name == "SIGKILL"
        if now.state == "SUSPENDED" and not kill:
            raise PausedJobError("{}: it gets no signal".format(now.describe()))
        signalled = ["scancel", *cluster, "--signal", KILL if kill else name.replace("SIG", ""), number]
        argvs = argvs if now.state == "SUSPENDED" else [signalled, *argvs] if kill else [signalled]
        if now.state == "STOPPED" and not kill:  # the signal is pending until its processes continue
            argvs.append(["scancel", *cluster, "--signal", "CONT", number])
    try:
        for argv in argvs:
            run(argv)
    except SlurmError:
        _cached.pop(job, None)
        job_state = state(job)
        if job_state.waits or job_state.runs or job_state.reason == NO_ANSWER:
            raise
        return False
    finally:
        _cached.pop(job, None)
    return True


def is_recognised(path: records.AttemptPaths, job: JobState) -> bool:
    """Return whether nothing speaks against a job's being the attempt's.

    A job without a script's path, as of ``--wrap`` or stdin, has to have the run's name before it is signalled.
    """
    if job.reason == ANOTHER:
        return False
    run_id = posixpath.basename(posixpath.dirname(posixpath.dirname(path.dir)))
    return not job.script or job.script.startswith("/") or job.name == name_of(run_id)


@reads()
def allocation(flags: List[str]) -> Allocation:
    """Allocation that SLURM would make for these flags of sbatch; no job is submitted.

    Raises SlurmError where SLURM rejects the flags.
    """
    argv = ["sbatch", "--test-only", *flags, "--wrap", "true"]
    lines = done(argv, TIMES).stderr.decode(errors="replace").strip().splitlines()
    match = re.search(r"to start at (\S+) using \d+ processors on nodes (\S+) in partition (\S+)", "\n".join(lines))
    if match is None:
        raise SlurmError("sbatch --test-only names no nodes: {!r}".format("".join(lines[-1:])[:200]))
    nodes, partition = match.group(2), match.group(3)
    gres = words_of(["sinfo", "--noheader", "--nodes", nodes, "--format", "%G"])
    names = words_of(["scontrol", "show", "hostnames", nodes])
    limits = words_of(["sinfo", "--noheader", "--partition", partition, "--format", "%L|%l"])
    own = os.environ.get("SBATCH_TIMELIMIT", "")  # a flag comes before it
    texts = [own] if own else (*limits, "")[0].split("|")
    limit = next((seconds for text in texts if (seconds := seconds_of(text))), 0.0)
    return Allocation(_time(match.group(1)), nodes, partition, sorted(set(gres)), len(names), limit)


@reads()
def job_of_attempt(root: str, run_id: str, attempt: int) -> Optional[JobState]:
    """The state of the job of an attempt; None where it is no job."""
    return described(records.RunPaths(root, records.check_run_id(run_id)).attempt(attempt))


@reads()
def commands() -> Dict[str, str]:
    """Version of each command of SLURM, or "!" and why it does not run."""
    variables: Dict[str, str] = {}
    for name in ("sbatch", "srun", "squeue", "scancel", "sacct"):
        try:
            variables[name] = run([name, "--version"]).strip()
        except SlurmError as error:
            variables[name] = "!" + str(error)
    return variables
