"""Preflight of another trainer's run: its interpreter on the target, its storage."""

from __future__ import annotations

from collections.abc import Iterator

from midstream.check.check_result import FAIL, PASS, WARN, Check
from midstream.check.stored_checks import WORDS, stored_checks
from midstream.check.trainer_advice import STRUCTURE_TIMEOUT
from midstream.errors import RemoteError
from midstream.fleet.fleet import HostConfig
from midstream.hosts.host import Host
from midstream.install.conda_environment import described, find_tool, list_for
from midstream.install.errors import LaunchError
from midstream.migrate.journal.plan import Plan
from midstream.migrate.planning.trainer_world import PROCESSES
from midstream_host.machine import environments
from midstream_host.trainers import stored_state

IMPORT_TIMEOUT = 60.0  # seconds


def check(target: Host, config: HostConfig, plan: Plan) -> Iterator[Check]:
    """Check the target's environment."""
    assert plan.trainer is not None
    run = plan.trainer.run_file
    if run.environment.requirements:
        yield Check("environment", PASS, "built from the run file's requirements, where it is missing")
    elif run.environment.conda:
        yield _conda(target, config, run.environment.conda)
    elif run.environment.python and config.container is not None:
        image = config.container.image
        yield Check("environment", PASS, f"{run.environment.python} in the container {image}, which is started later")
    elif run.environment.python:
        python = run.environment.python
        answer = target.call(environments.run_command, timeout=IMPORT_TIMEOUT)(argv=[python, "-c", "0"], env={})
        yield Check(
            "environment",
            FAIL if answer.code else PASS,
            f"{target.name}: {python}: {answer.error or f'ends with {answer.code}'}"
            if answer.code
            else f"{target.name} has {python}",
            "install it there, or name a lock: in the run file" if answer.code else "",
        )


def check_stored(source: Host, plan: Plan) -> Iterator[Check]:
    """Check the newest checkpoint for the target's number of processes."""
    assert plan.trainer is not None
    processes = next(change for change in plan.shape.changes if change.name == PROCESSES)
    before, after = int(processes.before), int(processes.after)
    try:
        stored = source.call(stored_state.newest, timeout=STRUCTURE_TIMEOUT)(
            root=source.root, run_id=plan.run_id, ranks=None, words=list(WORDS)
        )
    except RemoteError as error:
        yield Check("checkpoint", FAIL, error.message, f"midstream --checkpoints {plan.run_id}")
        return
    if stored.step is None:
        yield Check("checkpoint", WARN, "none is recorded yet: what it has for the target is not known")
    elif stored.problem:
        yield Check("checkpoint", FAIL, f"step {stored.step}: {stored.problem}", "it cannot be resumed from")
    else:
        yield from stored_checks(plan.trainer.run_file, stored, before, after)


def _conda(target: Host, config: HostConfig, lists: str) -> Check:
    """Check that the lock has packages for the target's platform."""
    conda = find_tool(target, config)
    try:
        listed = list_for(target.name, conda.platform, lists)
    except LaunchError as error:
        return Check("environment", FAIL, error.message, error.hint)
    tool = described(conda) if config.container is None else f"a tool of {config.container.image}"
    return Check("environment", PASS, f"the lock of conda, {listed.size}, with {tool}, where it is missing")
