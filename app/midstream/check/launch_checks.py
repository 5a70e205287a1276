"""Preflight of a launch: the checks of its target, then those of the run.

The run is the one that would be started there.
"""

from __future__ import annotations

from collections.abc import Iterator

from midstream.check.check_result import FAIL, OWNERSHIP, PASS, WARN, Check
from midstream.check.target_checks import check_target
from midstream.errors import MidstreamError
from midstream.hosts.host_pool import HostPool
from midstream.launch.launch_request import LaunchRequest
from midstream.launch.launch_run import check_launch
from midstream_core.listed_checkpoint import newest_checkpoint


def check_request(hosts: HostPool, request: LaunchRequest) -> Iterator[Check]:
    """Yield the checks of a launch one after the other, without effects on the run.

    The last check is named ``run``; the run's id is the first word of its ``detail``.
    """
    try:
        target = hosts.fleet.target(request.target)
    except MidstreamError as error:
        yield Check("target", FAIL, error.message, error.hint)
        return
    failed = False
    for check in check_target(hosts, target):
        failed = failed or check.state == FAIL
        yield check
    if failed:
        return
    notes: list[str] = []
    try:
        checked = check_launch(hosts, request, notes.append)
    except MidstreamError as error:
        yield Check("run", FAIL, error.message, error.hint)
        return
    for note in notes:
        yield Check("inputs", PASS if checked.continues else WARN, note)
    for reason in checked.ownership.reasons:
        yield Check(OWNERSHIP, WARN, reason, "the confirmation, or --yes, agrees to it")
    start = newest_checkpoint(entry for _, run in checked.member_runs for entry in run.usable)
    detail = f"continues from {start.name}" if start is not None else "starts at step 0" + " again" * checked.continues
    yield Check("run", PASS, f"{checked.run_id} {detail}")
