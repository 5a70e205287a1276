"""A real Slurm cluster on this machine: munged, slurmctld and one slurmd for each node, on loopback.

Each node has its own slurmd, port, spool directory, host name and process ids; files and network are this machine's. A
node's name in Slurm is not its host name, and only the latter is resolved. Its GPUs are null devices. Jobs that have
ended are in the text file of jobcomp/filetxt, which ``sacct --completion`` reads: accounting with slurmdbd would need a
database.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from simulators.sshd import Lab, SshServer, environment, free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "sacct")
NODES, CPUS, GPUS = 3, 8, 2  # of each node; the CPUs are virtual
# A node has its own host name and processes, which no other node sees; all end with it.
NODE = ("unshare", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child")
START_TIMEOUT = 60.0  # seconds
SEARCH_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def why_not() -> str:
    """Return why no cluster can be started here; empty where one can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=SEARCH_PATH) is None]
    if missing:
        return f"no {missing[0]}: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "a Slurm cluster needs root"


def configuration(directory: Path, ports: list[int], nodes: int) -> str:
    """Return slurm.conf. ``ports``: of the controller, then of each node."""
    lines = [
        "ClusterName=lab",
        f"SlurmctldHost={os.uname().nodename}(127.0.0.1)",
        f"SlurmctldPort={ports[0]}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={directory}/munge.socket",
        "CredType=cred/munge",
        f"StateSaveLocation={directory}/state",
        f"SlurmdSpoolDir={directory}/spool-%n",
        f"SlurmctldPidFile={directory}/slurmctld.pid",
        f"SlurmdPidFile={directory}/slurmd-%n.pid",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "MpiDefault=none",
        "JobAcctGatherType=jobacct_gather/none",
        "AccountingStorageType=accounting_storage/none",
        "JobCompType=jobcomp/filetxt",
        f"JobCompLoc={directory}/completed-jobs",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=sched_interval=2,bf_interval=2,sched_min_interval=100000,batch_sched_delay=0",
        "SlurmdParameters=config_overrides",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "JobRequeue=1",
        "ReturnToService=2",
        "OverTimeLimit=0",
        "KillWait=5",
        "MinJobAge=300",
        "InactiveLimit=0",
        "GresTypes=gpu",
        *(
            f"NodeName=n{number} NodeHostname=host-n{number} NodeAddr=127.0.0.1 Port={ports[number]} "
            f"CPUs={CPUS} RealMemory=4000 Gres=gpu:h100:{GPUS} State=UNKNOWN"
            for number in range(1, nodes + 1)
        ),
        f"PartitionName=low Nodes=n[1-{nodes}] Default=YES MaxTime=INFINITE PriorityTier=1 State=UP",
        f"PartitionName=high Nodes=n[1-{nodes}] MaxTime=INFINITE PriorityTier=10 State=UP",
    ]
    return "\n".join(lines) + "\n"


@dataclass
class SlurmCluster:
    """A running cluster. ``environment`` is what its client programs need."""

    directory: Path
    nodes: int = NODES
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, repr=False)

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.directory / "slurm.conf"), "PATH": SEARCH_PATH}

    def run(self, *argv: str, check: bool = True) -> str:
        """Run a client program and return its output.

        It is repeated where the controller, which has just started, answers that the job can be altered later.
        """
        env, end = {**os.environ, **self.environment}, time.monotonic() + 30
        while True:
            done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=180, stdin=subprocess.DEVNULL)
            if "try again later" not in done.stderr or time.monotonic() > end:
                break
            time.sleep(1)
        assert done.returncode == 0 or not check, f"{argv}: {done.stderr}"
        return done.stdout

    def start(self) -> None:
        """Start all daemons, and wait until every node is idle."""
        directory = self.directory
        for name in ("state", "dev"):
            (directory / name).mkdir(parents=True)
        (directory / "munge.key").write_bytes(os.urandom(128))
        (directory / "munge.key").chmod(0o400)
        for number in range(GPUS):
            os.mknod(directory / "dev" / f"nvidia{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        names = " ".join(f"host-n{number}" for number in range(1, self.nodes + 1))
        (directory / "hosts").write_text(f"{Path('/etc/hosts').read_text()}\n127.0.0.1 {names}\n")
        ports = [free_port() for _ in range(self.nodes + 1)]
        (directory / "slurm.conf").write_text(configuration(directory, ports, self.nodes))
        (directory / "gres.conf").write_text(
            f"NodeName=n[1-{self.nodes}] Name=gpu Type=h100 File={directory}/dev/nvidia[0-{GPUS - 1}]\n"
        )
        munged = ["munged", "--foreground", "--force", "--socket", f"{directory}/munge.socket"]
        munged += ["--key-file", f"{directory}/munge.key", "--log-file", f"{directory}/munged.log"]
        munged += ["--pid-file", f"{directory}/munged.pid", "--seed-file", f"{directory}/munged.seed"]
        self._spawn("munged", munged)
        self._wait(lambda: (directory / "munge.socket").exists(), "munged")
        self.start_controller()
        for number in range(1, self.nodes + 1):
            self.start_node(f"n{number}")
        self._wait(lambda: self.run("sinfo", "-h", "-N", "-p", "low", "-o", "%T", check=False).split()
                   == ["idle"] * self.nodes, "slurmctld")  # fmt: skip

    def start_node(self, name: str) -> None:
        """Start the daemon of a node."""
        (self.directory / f"spool-{name}").mkdir(exist_ok=True)
        daemon = (
            f"hostname host-{name} && mount --bind {self.directory}/hosts /etc/hosts && "
            f"exec slurmd -D -N {name} -f {self.directory}/slurm.conf"
        )
        self._spawn(name, [*NODE, "sh", "-c", daemon])

    def stop_node(self, name: str) -> None:
        """End the daemon of a node."""
        process = self.processes.pop(name)
        process.kill()
        process.wait(30)

    def hang(self, name: str) -> None:
        """Suspend the daemon of a node: it answers nothing, and its jobs go on."""
        os.kill(self._daemon(name), signal.SIGSTOP)

    def revive(self, name: str) -> None:
        """Let the daemon of a node go on, and return the node to service."""
        os.kill(self._daemon(name), signal.SIGCONT)
        self.run("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)

    def set_down(self, name: str) -> None:
        """Set a node down, as an administrator does whose node does not answer."""
        self.run("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=hangs")

    def _daemon(self, name: str) -> int:
        """Return the pid of a node's slurmd: the child of its unshare."""
        argv = ["ps", "-o", "pid=", "--ppid", str(self.processes[name].pid)]
        return int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()[0])

    def stop_controller(self, sent: signal.Signals = signal.SIGTERM) -> None:
        """End slurmctld. Nothing answers until `start_controller`."""
        process = self.processes.pop("slurmctld")
        process.send_signal(sent)
        process.wait(30)

    def start_controller(self) -> None:
        """Start slurmctld with the state that it has saved, and wait until it answers."""
        self._spawn("slurmctld", ["slurmctld", "-D", "-f", f"{self.directory}/slurm.conf"])
        self._wait(lambda: "is UP" in self.run("scontrol", "ping", check=False), "slurmctld")

    def submit(self, command: str, *flags: str) -> str:
        """Submit a job of a shell command, and return its number."""
        return self.run("sbatch", "--parsable", "--output=/dev/null", *flags, "--wrap", command).strip()

    def cancel_all(self) -> None:
        """End all jobs, and wait until none is in the queue."""
        self.run("scancel", "--user", "root", "--signal=KILL", check=False)
        self.run("scancel", "--user", "root", check=False)
        self._wait(lambda: not self.run("squeue", "--noheader", check=False).strip(), "the queue's end")

    def state(self, job: str) -> str:
        """Return the state of a job, as scontrol shows it."""
        shown = self.run("scontrol", "--oneliner", "show", "job", job, check=False)
        return next((word[9:] for word in shown.split() if word.startswith("JobState=")), "")

    def wait_state(self, job: str, *states: str, seconds: float = 90.0) -> str:
        """Wait until a job is in one of the states, and return it."""
        self._wait(lambda: self.state(job) in states, f"job {job} ({self.state(job)})", seconds)
        return self.state(job)

    def stop(self) -> None:
        """End the daemons, and with each node its jobs."""
        for name, process in reversed(self.processes.items()):
            process.kill() if name.startswith("n") else process.terminate()  # unshare ignores SIGTERM
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(30)

    def _spawn(self, name: str, argv: list[str]) -> None:
        env = {**os.environ, **self.environment}
        with (self.directory / f"{name}.out").open("ab") as output:
            self.processes[name] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, start_new_session=True
            )

    def _wait(self, reached: Callable[[], bool], what: str, seconds: float = START_TIMEOUT) -> None:
        end = time.monotonic() + seconds
        while not reached():
            for name, process in self.processes.items():
                if process.poll() is not None:
                    pytest.fail(f"{name} has exited: {(self.directory / f'{name}.out').read_text()[-800:]}")
            if time.monotonic() > end:
                pytest.fail(f"{what} is not ready after {seconds:.0f} s")
            time.sleep(0.05)


def login_node(lab: Lab, cluster: SlurmCluster, name: str, devices: int | None = None) -> SshServer:
    """Start an sshd whose sessions have the cluster's client programs."""
    server = lab.host(name, devices=devices)
    server.stop()
    config = server.directory / "sshd_config"
    config.write_text(environment(**cluster.environment) + config.read_text())
    server.start()
    return server


@pytest.fixture(scope="module")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A cluster of three nodes, shared by the tests of a module."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
