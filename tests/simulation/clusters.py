"""A simulated SLURM cluster: a controller, compute nodes, and the commands that midstream runs.

The real code submits, queries and signals; its commands are answered here. A job's nodes share the root of the login
node. The environment of a job is that of its script, which midstream has written.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from midstream_host.runs import slurm, slurm_commands
from simulation.machines import Machine, SimulatedProcess, present
from simulation.operating_system import replace_everywhere
from simulation.scheduler import BEGIN, SCHEDULER

if TYPE_CHECKING:
    from simulation.world import World

TARGET = "queue"
LOGIN = "two"
NODES = ("four", "five")
LATENCY = 0.05  # seconds of a command
RECORD_TIMEOUT = 300.0  # seconds for which a job waits for the record that names it, as its script does
KILL_WAIT = 30.0  # seconds from SIGTERM to SIGKILL of a cancelled job
NODE_TIMEOUT = 60.0  # seconds until a node that does not answer counts as failed
REQUEUE_DELAY = 120.0  # seconds until a requeued job may start again
MIN_JOB_AGE = 300.0  # seconds for which the queue shows a job that has ended
WAITS = (1.0, 1.0, 20.0, 200.0, 1500.0)  # seconds in the queue
LAGS = (0.0, 5.0, 400.0)  # seconds by which the accounting is late
BUSY = "Job can not be altered now, try again later"


@dataclass
class Job:
    """A job, with what the accounting records of it."""

    number: int
    script: str
    name: str
    starts: float  # virtual seconds; expected, then real
    state: str = "PENDING"
    reason: str = "Resources"
    ended: float = 0.0
    node: Machine | None = None
    processes: list[SimulatedProcess] = field(default_factory=list)
    wanted: str = ""  # state in which its end is to leave it
    history: list[tuple[float, int, str]] = field(default_factory=list)  # time, number of the start, state
    restarts: int = 0

    def enter(self, state: str, reason: str = "None") -> None:
        """Change the state, as the accounting will show it some time later."""
        self.state, self.reason = state, reason
        self.history.append((SCHEDULER.now, self.restarts, state))

    @property
    def over(self) -> bool:
        return self.state not in ("PENDING", "RUNNING", "COMPLETING")


@dataclass
class Cluster:
    """The controller, and what is wrong with it.

    Attributes:
        hangs: Whether no command is answered.
        busy: Whether no job can be altered.
    """

    world: World
    hangs: bool = False
    busy: bool = False
    jobs: dict[int, Job] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._dice = self.world.dice
        self._lag = self._dice.choice(LAGS)
        self._requeues = self._dice.random() < 0.7  # else a job whose node fails has ended

    # ------------------------------------------------------------------------------------------ jobs

    def _submit(self, script: str, name: str) -> Job:
        job = Job(len(self.jobs) + 1, script, name, SCHEDULER.now + self._dice.choice(WAITS))
        self.jobs[job.number] = job
        job.enter("PENDING", "Resources")
        SCHEDULER.start(lambda: self._live(job), None, f"job {job.number}")
        return job

    def _live(self, job: Job) -> None:
        """Run a job from its submission to its end, with every start of it."""
        while self._wait_for_node(job):
            job.starts = SCHEDULER.now
            job.enter("RUNNING")
            self._run(job)
            if job.wanted != "PENDING":
                break
            job.wanted, job.restarts, job.starts = "", job.restarts + 1, SCHEDULER.now + REQUEUE_DELAY
            job.enter("PENDING", "BeginTime")
        job.ended = SCHEDULER.now
        job.enter(job.wanted or "COMPLETED")

    def _wait_for_node(self, job: Job) -> bool:
        """Give a job its node when its time has come; False where it was cancelled before."""
        while not job.wanted:
            free = [machine for machine in self._nodes() if machine.up and not self._used(machine)]
            if SCHEDULER.now >= job.starts and free and not self.hangs:
                job.node = self._dice.choice(free)
                return True
            SCHEDULER.park(max(1.0, job.starts - SCHEDULER.now) if job.starts > SCHEDULER.now + 1 else 1.0)
        return False

    def _nodes(self) -> list[Machine]:
        machines = [self.world.machines[name] for name in NODES]
        return [machine for machine in machines if not any(map(_is_engine, machine.processes.values()))]

    def _used(self, machine: Machine) -> bool:
        return any(job.node is machine and job.state in ("RUNNING", "COMPLETING") for job in self.jobs.values())

    def _run(self, job: Job) -> None:
        """Run a job's script once, until its processes have ended or its node counts as failed."""
        node = job.node
        assert node is not None
        boots, codes = node.boots, list[int]()
        job.processes = []

        def script() -> int:
            if not _is_recorded(job):
                return 1
            engine = self._start_engine(job, node)
            job.processes.append(engine)
            engine.ended.wait()
            codes.append(engine.exit_code or 0)
            return engine.exit_code or 0

        batch = SimulatedProcess(node, script, f"script of job {job.number}")
        job.processes.append(batch)
        batch.ended.wait()
        if job.wanted == "NODE_FAIL" or node.boots != boots or not node.up:
            SCHEDULER.park(0.0 if job.wanted else NODE_TIMEOUT)
            job.wanted = "PENDING" if self._requeues else "NODE_FAIL"
        elif not job.wanted:
            job.wanted = "FAILED" if batch.exit_code else "COMPLETED"

    def _start_engine(self, job: Job, node: Machine) -> SimulatedProcess:
        from simulation.world import start_engine

        directory = str(Path(job.script).parent)
        environment = dict(_exports(Path(job.script).read_text()))
        environment["MIDSTREAM_HOST"] = LOGIN
        return start_engine(node, environment, directory, f"{directory}/log-0.txt")

    def _end(self, job: Job, wanted: str, grace: float = KILL_WAIT) -> None:
        """End a job: SIGTERM, then SIGKILL."""
        if job.state == "PENDING":
            job.wanted = wanted
            if not job.over:
                job.enter(wanted)
            return
        if job.state != "RUNNING":
            return
        job.wanted = wanted
        job.enter("COMPLETING")
        engines = job.processes[1:]
        for engine in engines:
            engine.deliver(signal.SIGTERM)

        def kill() -> None:
            SCHEDULER.park(grace)
            for process in [*engines, *job.processes[:1]]:
                if process.exit_code is None:
                    process.kill()

        SCHEDULER.start(kill, None, f"end of job {job.number}")

    # ------------------------------------------------------------------------------------------ faults

    def running(self) -> list[Job]:
        """Return the jobs that run."""
        return [job for job in self.jobs.values() if job.state == "RUNNING"]

    def requeue(self) -> None:
        """End every running job at once, and have it wait again."""
        for job in self.running():
            self._end(job, "PENDING", grace=0.0)

    def preempt(self) -> None:
        """Give every running job's node to another one."""
        for job in self.running():
            self._end(job, "PENDING" if self._requeues else "PREEMPTED", self._dice.choice([1.0, KILL_WAIT]))

    def lose_nodes(self, seconds: float, after_save: bool) -> None:
        """Count the nodes of running jobs as failed: their processes hang for some time, and go on then.

        ``after_save``: not before their next save.
        """
        for job in self.running():
            for engine in job.processes[1:]:
                if after_save:
                    engine.after_save = lambda job=job: self._lose(job, seconds)
                else:
                    self._lose(job, seconds)

    def isolate_nodes(self) -> None:
        """Count the nodes of running jobs as failed, and end the jobs, while their engines train on."""
        for job in self.running():
            job.wanted, self._requeues = "NODE_FAIL", False
            job.processes[0].kill()

    def _lose(self, job: Job, seconds: float) -> None:
        batch, *engines = job.processes
        for engine in engines:
            freeze(engine, seconds)
        job.wanted = "NODE_FAIL"
        batch.kill()

    # ------------------------------------------------------------------------------------------ commands

    def answer(self, argv: Sequence[str], timeout: float) -> tuple[int, str, str]:
        """Run a command; return its exit code, output and errors."""
        name, words = argv[0], list(argv[1:])
        SCHEDULER.park(LATENCY)
        if words == ["--version"]:
            return 0, "slurm 24.05.0\n", ""
        if self.hangs and not (name == "sbatch" and self._dice.random() < 0.5):
            self._hang(argv, timeout)
        commands: dict[str, Callable[[list[str]], tuple[int, str, str]]] = {
            "sbatch": self._sbatch, "squeue": self._squeue, "sacct": self._sacct, "scancel": self._scancel,
            "sinfo": lambda words: (0, "(null)\n" if "%G" in words else "infinite|infinite\n", ""),
            "scontrol": lambda words: (0, f"{NODES[0]}\n", ""),
        }  # fmt: skip
        answer = commands[name](words)
        if self.hangs:  # it accepted the job, and its answer is lost
            self._hang(argv, timeout)
        return answer

    def _hang(self, argv: Sequence[str], timeout: float) -> None:
        SCHEDULER.park(timeout)
        raise subprocess.TimeoutExpired(list(argv), timeout)

    def _sbatch(self, words: list[str]) -> tuple[int, str, str]:
        if "--test-only" in words:
            at = int(BEGIN + SCHEDULER.now)
            shown = f"sbatch: Job 1 to start at {at} using 1 processors on nodes {NODES[0]} in partition main\n"
            return 0, "", shown
        name = next(word.partition("=")[2] for word in words if word.startswith("--job-name="))
        return 0, f"{self._submit(words[-1], name).number}\n", ""

    def _squeue(self, words: list[str]) -> tuple[int, str, str]:
        shown = [job for job in self.jobs.values() if not job.ended or SCHEDULER.now < job.ended + MIN_JOB_AGE]
        if "--user" in words:
            return 0, "".join(f"{job.number}|{job.state}|{job.script}\n" for job in shown), ""
        number = int(words[words.index("--jobs") + 1])
        job = next((job for job in shown if job.number == number), None)
        if job is None:
            return 1, "", "slurm_load_jobs error: Invalid job id specified\n"
        ended = int(BEGIN + job.ended) if job.ended else "N/A"
        fields = job.state, job.reason, int(BEGIN + job.starts), ended, "(null)", job.script, job.name
        return 0, "|".join(map(str, fields)) + "\n", ""

    def _sacct(self, words: list[str]) -> tuple[int, str, str]:
        if "--completion" in words:
            return 1, "", "sacct: error: Slurm job completion is not properly configured\n"
        job = self.jobs.get(int(words[words.index("--jobs") + 1]))
        last = {
            start: "PREEMPTED" if state == "COMPLETING" else state
            for at, start, state in (job.history if job else ())
            if at + (self._lag if start else 0.0) <= SCHEDULER.now  # a requeued job's next start is recorded late
        }
        return 0, "".join(f"{state}|0:0\n" for state in last.values()), ""

    def _scancel(self, words: list[str]) -> tuple[int, str, str]:
        job = self.jobs.get(int(words[-1]))
        if job is None or job.over:
            return 1, "", f"scancel: error: Kill job error on job id {words[-1]}: Invalid job id specified\n"
        if self.busy:
            return 1, "", f"scancel: error: Kill job error on job id {job.number}: {BUSY}\n"
        if "--signal" not in words:
            self._end(job, "CANCELLED")
            return 0, "", ""
        if job.state != "RUNNING":
            return 1, "", f"scancel: error: Kill job error on job id {job.number}: Job/step already completing\n"
        for engine in job.processes[1:]:
            if engine.exit_code is None:
                engine.deliver(signal.Signals[f"SIG{words[words.index('--signal') + 1]}"])
        return 0, "", ""


def _is_engine(process: SimulatedProcess) -> bool:
    return process.name.startswith("engine")


def freeze(process: SimulatedProcess, seconds: float) -> None:
    """Have a process do nothing for some time, as one whose file system hangs."""
    if process.held is not None or process.exit_code is not None:
        return
    held = process.held = []
    process.hung = True

    def thaw() -> None:
        SCHEDULER.park(seconds)
        process.held = None
        SCHEDULER.resume(held)

    SCHEDULER.start(thaw, None, f"thaw of {process.name}")


def _exports(script: str) -> Iterator[tuple[str, str]]:
    """Yield the variables that a script exports for the engine."""
    for line in script.splitlines():
        match = re.match(r"export ((?:MIDSTREAM_|RUN_ID)\w*)=(.*)", line)
        if match and match[1] != "MIDSTREAM_COORDINATOR":
            yield match[1], shlex.split(match[2])[0]


def _is_recorded(job: Job) -> bool:
    """Return whether the record of its attempt names a job, as the script looks for it."""
    record, end = Path(job.script).parent / slurm.JOB, SCHEDULER.now + RECORD_TIMEOUT
    while not (record.is_file() and record.stat().st_size):
        if SCHEDULER.now > end:
            return False
        SCHEDULER.park(1.0)
    return re.search(rf'"{job.number}(;|")', record.read_text()) is not None


class _OfProcess(dict[str, Any]):
    """A dictionary of a module, of which each simulated process has its own."""

    def _own(self) -> dict[str, Any]:
        process = present()
        return {} if process is None else vars(process).setdefault("job_states", {})

    def get(self, key: str, default: Any = None) -> Any:
        return self._own().get(key, default)

    def pop(self, key: str, default: Any = None) -> Any:
        return self._own().pop(key, default)

    def clear(self) -> None:
        self._own().clear()

    def __setitem__(self, key: str, value: Any) -> None:
        self._own()[key] = value


def install(cluster_of: Callable[[], Cluster | None]) -> None:
    """Connect the commands of SLURM with the present world's cluster, once."""

    def run(
        argv: Sequence[str], *, timeout: float, env: Mapping[str, str], **_: Any
    ) -> subprocess.CompletedProcess[bytes]:
        cluster, process = cluster_of(), present()
        if cluster is None or process is None or process.machine.name not in (LOGIN, *NODES):
            raise FileNotFoundError(2, "No such file or directory")
        code, output, errors = cluster.answer(argv, timeout)
        return subprocess.CompletedProcess(list(argv), code, output.encode(), errors.encode())

    slurm_commands.subprocess = SimpleNamespace(  # type: ignore[attr-defined]
        run=run, PIPE=None, DEVNULL=None, TimeoutExpired=subprocess.TimeoutExpired
    )
    slurm._cached = _OfProcess()
    replace_everywhere(slurm._query, _forgetting(slurm._query))


def _forgetting(query: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a query of a job without what another process has learnt of the controller."""

    def first(job: str) -> Any:
        if "job_states" not in vars(present()) or not present().job_states:  # type: ignore[union-attr]
            slurm._unanswered_until = 0.0
        return query(job)

    return first
