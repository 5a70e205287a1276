"""Jobs of a SLURM cluster as a target: the job's script, and its submission.

One job is one attempt, one task is one engine process. ``srun`` starts the tasks together, and ends all if one fails.
Process 0 is on the first node, where the script runs. The compute nodes have to share the file system of the login
node's root: the script checks that before it starts anything.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from midstream.errors import RemoteError
from midstream.fleet.fleet import HostConfig, SlurmTarget
from midstream.hosts.containers.container_command import in_container, srun_flags
from midstream.hosts.host import Host
from midstream.launch.engine_secrets import read_secrets
from midstream.launch.errors import LaunchError
from midstream.launch.slurm_allocation import sbatch_flags, sbatch_hint
from midstream.launch.start_attempt import (
    ANY,
    Attempt,
    Launch,
    Prepared,
    Rank,
    engine_command,
    engine_environment,
    supervised,
)
from midstream.remote.runs import attempts, run_state
from midstream.remote.runs.attempts import RUN_DIRECTORY, WORK
from midstream.remote.runs.process_start import SETUP_FAILED
from midstream.remote.runs.slurm import JOB, name_of
from midstream_engine import records

SUBMIT_TIMEOUT = 300.0  # seconds: sbatch, squeue and scancel may take a minute each
RECORD_TIMEOUT = 300  # seconds for which a job waits for the record that names it: its file system may lag
SAVE_BEFORE = 300  # seconds before its time limit at which the job is signalled to save and stop
SIGNAL = re.compile(r"(?:[RB]+:)?\w+(?:@([0-9]{1,5}))?")  # sbatch's --signal
SIGNAL_DEFAULT = 60.0  # seconds before the time limit where --signal names none
# No process: the job has none before it runs, and then they are on other machines.
NO_PROCESS = records.ProcessIdentity("", 0, 0)


def submit(host: Host, config: HostConfig, slurm: SlurmTarget, launch: Launch, prepared: Prepared) -> Attempt:
    """Claim the run's next attempt and submit its job.

    Return without waiting for the job's nodes.

    Args:
        host: The host that submits the job.
        config: Its entry in the fleet file.
        slurm: The target's SLURM settings.
        launch: Inputs of the attempt's start.
        prepared: Engine and environment on the host.

    Raises:
        LaunchError: sbatch rejected the job; the error has its message.
    """
    run_id, python = launch.run_id, prepared.environment.python
    number = host.call(run_state.claim_attempt)(root=host.root, run_id=run_id, at_least=launch.at_least)
    env = engine_environment(host.root, config, prepared.engine.directory, launch, number)
    env[RUN_DIRECTORY] = records.RunPaths(host.root, run_id).dir
    attempt = records.RunPaths(host.root, run_id).attempt(number).dir
    command = [
        *supervised(host.root, config, python, run_id, number, "$SLURM_PROCID"),
        *engine_command(host.root, python, run_id),
        *launch.overrides,
    ]
    try:
        host.call(attempts.submit, timeout=SUBMIT_TIMEOUT)(
            root=host.root,
            run_id=run_id,
            number=number,
            flags=list(slurm.sbatch),
            script=job_script(
                run_id,
                attempt,
                python if config.container is None else "python3",  # the image's is not on the node itself
                env,
                config.setup,
                slurm.ports,
                srun_flags(config.container, root=host.root),
            ),
            rank=rank_script(attempt, command, in_container(config.container, [], root=host.root, variables=env)),
            config=launch.config_text,
            command=None if launch.command is None else launch.command.to_json(),
            secrets=read_secrets(host.name, config),
        )
    except RemoteError as error:
        if error.kind != "SlurmError":
            raise
        raise LaunchError(error.message, sbatch_hint(launch.target, error.message)) from error
    return Attempt(host.name, run_id, number, NO_PROCESS, (Rank(ANY, host.name),))


def seconds_to_save(sbatch: Sequence[str]) -> float:
    """Return how many seconds before its time limit a job is signalled.

    ``sbatch``: its flags of sbatch.
    """
    given = sbatch_flags(sbatch).get("signal")
    if given is None:
        return float(SAVE_BEFORE)
    match = SIGNAL.fullmatch(given)
    return float(match[1]) if match and match[1] else SIGNAL_DEFAULT


def job_script(
    run_id: str,
    attempt: str,
    python: str,
    env: Mapping[str, str],
    setup: Sequence[str],
    ports: Sequence[int],
    srun: Sequence[str] = (),
) -> str:
    """Return the script for sbatch.

    Flags on sbatch's command line take precedence over those in the script.

    Args:
        run_id: The run.
        attempt: Directory of the attempt.
        python: Interpreter.
        env: Variables of the engine's environment.
        setup: Shell lines that run before the engine.
        ports: First and last port of process 0; empty for any that is free.
        srun: Further flags of srun.
    """
    q = shlex.quote
    first, last = (ports[0], ports[-1]) if ports else (0, 0)
    port = (
        "import socket,sys;a,b=map(int,sys.argv[1:])\n"
        "for p in range(a,b+1):\n"
        " s=socket.socket()\n"
        " try: s.bind(('',p))\n"
        " except OSError: continue\n"
        " print(s.getsockname()[1]);break\n"
        "else: sys.exit('no port of %d to %d is free' % (a,b))\n"
    )
    lines = [
        "#!/bin/sh",
        f"#SBATCH --job-name={name_of(run_id)}",
        f'#SBATCH --output="{attempt}/job.txt"',
        "#SBATCH --open-mode=append",  # a job that is requeued starts the script again
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --signal=TERM@{SAVE_BEFORE}",
        f"[ -f {q(attempt)}/rank.sh ] || {{ echo {q(attempt)} is not seen on $(hostname): >&2",
        "    echo root: of the login host has to be on the file system that the nodes share >&2; exit 1; }",
        *_only_recorded_job(f"{attempt}/{JOB}"),
        *(f"export {name}={q(value)}" for name, value in sorted(env.items())),
        *(f"eval {q(line)} || {{ echo setup: {q(line)} failed >&2; exit {SETUP_FAILED}; }}" for line in setup),
        f"port=$({q(python)} -I -c {q(port)} {first} {last}) || exit 1",
        "node=${SLURMD_NODENAME:-$(hostname)}",
        'getent hosts "$node" >/dev/null ||',  # its name need not be one that is resolved: then SLURM's own address
        '    node=$(scontrol show node "$node" | sed -n "s/.*NodeAddr=\\([^ ]*\\).*/\\1/p")',
        'export MIDSTREAM_COORDINATOR="$node:$port"',
        'export no_grpc_proxy="$node"',
        # Since 22.05 srun does not read the number that sbatch was given.
        'if [ -n "$SLURM_CPUS_PER_TASK" ]; then export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"; fi',
        # sbatch's --export limits srun too, but for this flag: the engine needs the variables above.
        shlex.join(["exec", "srun", "--export=ALL", "--kill-on-bad-exit=1", *srun, "sh", f"{attempt}/rank.sh"]),
    ]
    return "\n".join(lines) + "\n"


def _only_recorded_job(record: str) -> list[str]:
    """Return lines that end any job but the recorded one (`slurm_submission`)."""
    return [
        f"record={shlex.quote(record)} waited=0",
        'until [ -s "$record" ]; do',
        f'    [ $waited -lt {RECORD_TIMEOUT} ] || {{ echo "$record is missing: job $SLURM_JOB_ID ends" >&2; exit 1; }}',
        "    sleep 1; waited=$((waited + 1))",
        "done",
        '[ -z "$SLURM_JOB_ID" ] || grep -Eq "\\"$SLURM_JOB_ID(;|\\")" "$record" || {',
        '    echo "$record names another job: job $SLURM_JOB_ID ends" >&2; exit 1; }',
    ]


def rank_script(attempt: str, command: Sequence[str], container: Sequence[str] = ()) -> str:
    """Return the script of each task.

    The words of ``command`` reach the engine unchanged.

    ``container``: a command line that runs its further words in a container.
    """
    words = " ".join('"$SLURM_PROCID"' if word == "$SLURM_PROCID" else shlex.quote(word) for word in command)
    return (
        "#!/bin/sh\n"
        f"exec >>{shlex.quote(attempt)}/log-$SLURM_PROCID.txt 2>&1\n"
        f'work=$(mktemp -d {shlex.quote(attempt)}/{WORK}$SLURM_PROCID-XXXXXX) && cd "$work" || exit 1\n'
        f"set -- {words}\n"
        'if [ "$SLURM_NTASKS" -gt 1 ]; then\n'
        '    set -- "$@" --trainer.distributed.coordinator_address "$MIDSTREAM_COORDINATOR" \\\n'
        '        --trainer.distributed.num_processes "$SLURM_NTASKS" --trainer.distributed.process_id "$SLURM_PROCID"\n'
        "fi\n"
        f'exec {"".join(shlex.quote(word) + " " for word in container)}"$@"\n'
    )
