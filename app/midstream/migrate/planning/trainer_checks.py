"""Preflight of a run of another trainer.

It checks the run's interpreter on the target, and what its trainer stores.
"""

from __future__ import annotations

from collections.abc import Iterator

from midstream.check.check_result import FAIL, PASS, WARN, Check
from midstream.fleet.fleet import HostConfig
from midstream.hosts.host import Host
from midstream.launch.errors import LaunchError
from midstream.launch.install.conda_environment import described, find_tool, list_for
from midstream.migrate.records.plan import Plan
from midstream.remote.machine import environments
from midstream_engine.foreign.run_file import YES

IMPORT_TIMEOUT = 60.0  # seconds


def check(target: Host, config: HostConfig, plan: Plan) -> Iterator[Check]:
    """Check the target's environment; report what the trainer's checkpoints lack."""
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
    missing = [
        what
        for what, stored in (
            ("random state", run.stored.random_state),
            ("position of the data", run.stored.data_position),
        )
        if stored != YES
    ]
    if missing:
        hint = run.stored.advice[0] if run.stored.advice else ""
        yield Check("stored", WARN, f"checkpoints of {run.trainer} may lack {' and '.join(missing)}", hint)
    else:
        yield Check("stored", PASS, f"checkpoints of {run.trainer} have random state and position of the data")


def _conda(target: Host, config: HostConfig, lists: str) -> Check:
    """Check that the lock has packages for the target's platform."""
    found = find_tool(target, config)
    try:
        listed = list_for(target.name, found.platform, lists)
    except LaunchError as error:
        return Check("environment", FAIL, error.message, error.hint)
    tool = described(found) if config.container is None else f"a tool of {config.container.image}"
    return Check("environment", PASS, f"the lock of conda, {listed.size}, with {tool}, where it is missing")
