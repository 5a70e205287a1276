"""Jobs of a SLURM cluster as a target: the job's script, and its submission.

One job is one attempt, one task is one engine process. ``srun`` starts the tasks together, and ends all if one fails.
The job's shell waits for it: srun kills its tasks on SIGTERM and SIGHUP, and discards the first SIGINT, so the shell
passes a signal for the batch script alone (``--signal=B:TERM``, ``scancel --batch``) on to the tasks.
Process 0 is on the first node, where the script runs. The compute nodes have to share the file system of the login
node's root: the script checks that before it starts anything.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from midstream.errors import RemoteError
from midstream.fleet.fleet import HostConfig, SlurmTarget
from midstream.fleet.sbatch_flags import sbatch_flags
from midstream.format import duration
from midstream.hosts.container_command import in_container, srun_flags
from midstream.hosts.host import Host
from midstream.install.errors import LaunchError
from midstream.launch.engine_secrets import read_secrets
from midstream.launch.slurm_allocation import sbatch_hint, task_flags, time_limit
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
from midstream_core import records
from midstream_host.runs import attempts, job_remark, run_state
from midstream_host.runs.attempts import RUN_DIRECTORY, WORK
from midstream_host.runs.process_start import SETUP_FAILED
from midstream_host.runs.slurm import JOB, Allocation, name_of

SUBMIT_TIMEOUT = 300.0  # seconds: sbatch, squeue and scancel may take a minute each
RECORD_TIMEOUT = 300  # seconds for which a job waits for the record that names it: its file system may lag
SAVE_BEFORE = 300  # seconds before its time limit at which the job is signalled to save and stop
SIGNAL = re.compile(r"(?:[RB]+:)?\w+(?:@([0-9]{1,5}))?")  # sbatch's --signal
EARLY = 60.0  # seconds by which SLURM may signal a job too early
SIGNAL_DEFAULT = 60.0  # seconds before the time limit where --signal names none
# SLURM sends a signal once: to no step where srun has not begun, and none before the end of a reservation. So a request
# to stop is repeated until srun has ended, or the job was requeued: its next start has the same id. A second SIGINT
# would end the engine without saving: all are sent as TERM.
FORWARD = f"""\
for name in $(env | sed -n -e 's/^\\(SCANCEL_[A-Z0-9_]*\\)=.*/\\1/p' -e 's/^\\(SQUEUE_[A-Z0-9_]*\\)=.*/\\1/p'); do
    unset "$name"
done
echo "{job_remark.STARTED}$(hostname)"
srun= early= helpers=
repeat() {{
    tries=0
    while kill -0 "$srun" 2>/dev/null; do
        shown=$(scontrol --oneliner show job "$SLURM_JOB_ID" 2>/dev/null) || shown=
        case " $shown " in
        *" Restarts=${{SLURM_RESTART_COUNT:-0}} "*) scancel --signal="$1" "$SLURM_JOB_ID" 2>/dev/null; sent=$? ;;
        *" Restarts="*) return ;;
        *) sent=1 ;;
        esac
        if [ $sent -ne 0 ]; then
            tries=$((tries + 1)); [ $tries -lt 30 ] && sleep 2 || return
        elif [ "$1" = TERM ]; then sleep 10
        else return
        fi
    done
}}
forward() {{
    signalled=yes
    if [ -z "$srun" ]; then early=$1; else repeat "$1" & helpers="$helpers $!"; fi
}}
for name in TERM INT HUP; do trap "forward TERM" $name; done
trap "forward USR1" USR1
end_of() {{
    found=$(echo "$1" | sed -n "$2")
    case "$found" in '' | *[!0-9]*) echo 0 ;; *) echo "$found" ;; esac
}}
# A helper that began as the script ended may miss its signal: it looks itself. A script that has ended and that no one
# has waited for yet still has its process id.
nap() {{
    until=$(($(date +%s) + $1))
    while kill -0 $$ 2>/dev/null && ! grep -qs '^State:.Z' /proc/$$/status; do
        [ $(date +%s) -lt $until ] || return 0
        sleep 5 >/dev/null 2>&1
    done
    return 1
}}
watch_end() {{
    while :; do
        now=$(date +%s) reserved=0
        if [ -n "$SLURM_JOB_RESERVATION" ]; then
            shown=$(SLURM_TIME_FORMAT=%s scontrol --oneliner show reservation "$SLURM_JOB_RESERVATION" 2>/dev/null)
            case "$shown" in
            *Flags=*FLEX*) ;;
            *) reserved=$(end_of "$shown" 's/.* EndTime=\\([0-9]*\\).*/\\1/p') ;;
            esac
        fi
        end=$(end_of "$(SLURM_TIME_FORMAT=%s squeue --noheader --jobs "$SLURM_JOB_ID" --format %e 2>/dev/null)" p)
        name=LIMIT_SIGNAL wait=600
        if [ $reserved -gt 0 ]; then
            wait=30
            [ $end -gt 0 ] && [ $end -le $reserved ] || end=$reserved name=TERM
        fi
        if [ $end -eq 0 ]; then wait=30; else
            left=$((end - now - SAVE_BEFORE))
            if [ $left -le 0 ]; then
                [ $end -ne $reserved ] || echo "{job_remark.SAID}job $SLURM_JOB_ID is stopped" \\
                    "SAVE_BEFORE s before its reservation $SLURM_JOB_RESERVATION ends"
                repeat "$name"; return
            fi
            [ $left -gt $wait ] || wait=$left
        fi
        nap $wait || return
    done
}}"""
# A signal ends the shell's wait, not srun. The code of a process that it has waited for before is 127.
WAIT = f"""\
srun=$! code=127 signalled=yes
[ -z "$early" ] || forward "$early"
watch_end & helpers="$helpers $!"
while [ -n "$signalled" ]; do
    signalled=; wait "$srun"; status=$?
    [ $status -eq 127 ] || code=$status
done
kill $helpers 2>/dev/null
ends=$(SLURM_TIME_FORMAT=%s squeue --noheader --jobs "$SLURM_JOB_ID" --format %e 2>/dev/null)
case "$ends" in
'' | *[!0-9]*) ;;
*)
    left=$((ends - $(date +%s)))
    [ $left -lt 0 ] || [ $left -gt $((SAVE_BEFORE + 60)) ] ||
        echo "{job_remark.SAID}job $SLURM_JOB_ID ended $left s before its time limit (signal: SAVE_BEFORE s before)"
    ;;
esac
exit $code"""
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
            flags=[*job_flags(run_id, attempt, slurm.sbatch), *slurm.sbatch],
            script=job_script(
                attempt,
                python if config.container is None else "python3",  # the image's is not on the node itself
                env,
                config.setup,
                slurm,
                srun_flags(config.container, root=host.root),
            ),
            rank=rank_script(attempt, command, in_container(config.container, [], root=host.root, variables=env)),
            config=launch.config_text,
            command=None if launch.command is None else launch.command.to_json(),
            secrets=read_secrets(host.name, config),
            epoch=launch.epoch,
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


def limit_signal(sbatch: Sequence[str]) -> str:
    """Return the signal before the time limit: TERM, or USR1, which only saves."""
    given = sbatch_flags(sbatch).get("signal", "").rpartition(":")[2].partition("@")[0]
    return "USR1" if given.upper().removeprefix("SIG") in ("USR1", "10") else "TERM"


def short_limit(sbatch: Sequence[str], allocation: Allocation | None) -> str:
    """Return that a job's time limit leaves no time to train; empty where it does.

    Args:
        sbatch: The target's flags of sbatch.
        allocation: What SLURM would allocate, with the limit of its partition; None: not known.
    """
    limit, saves = time_limit(sbatch, allocation), seconds_to_save(sbatch)
    if not limit or limit > saves + EARLY:
        return ""
    return (
        f"its time limit is {duration(limit)}, and SLURM signals a job to save {duration(saves)} before it: "
        "it stops before it has trained"
    )


def job_flags(run_id: str, attempt: str, sbatch: Sequence[str]) -> list[str]:
    """Return the flags of every job, which those of the target replace.

    Lines of the script would be replaced by variables such as ``SBATCH_SIGNAL``.
    """
    return [
        f"--job-name={name_of(run_id)}",
        f"--output={attempt.replace('%', '%%')}/job.txt",
        "--open-mode=append",  # a job that is requeued starts the script again
        f"--signal=TERM@{SAVE_BEFORE}",
        *task_flags(sbatch),
    ]


def job_script(
    attempt: str,
    python: str,
    env: Mapping[str, str],
    setup: Sequence[str],
    target: SlurmTarget,
    srun: Sequence[str] = (),
) -> str:
    """Return the script for sbatch.

    Args:
        attempt: Directory of the attempt.
        python: Interpreter.
        env: Variables of the engine's environment.
        setup: Shell lines that run before the engine.
        target: The target: its flags of sbatch, and the first and last port of process 0.
        srun: Further flags of srun.
    """
    q = shlex.quote
    first, last = (target.ports[0], target.ports[-1]) if target.ports else (0, 0)
    save_before = f"{seconds_to_save(target.sbatch):.0f}"
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
        FORWARD.replace("SAVE_BEFORE", save_before).replace("LIMIT_SIGNAL", limit_signal(target.sbatch)),
        # sbatch's --export limits srun too, but for this flag: the engine needs the variables above.
        shlex.join(["srun", "--export=ALL", "--kill-on-bad-exit=1", *srun, "sh", f"{attempt}/rank.sh"]) + " &",
        WAIT.replace("SAVE_BEFORE", save_before),
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
