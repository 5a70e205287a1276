"""Check of the packages that a target's engine will have, beside the source's."""

from __future__ import annotations

from collections.abc import Mapping

from midstream.check.check_result import PASS, WARN, Check
from midstream.fleet.fleet import HostConfig
from midstream.hosts.host import Host
from midstream.install.expected_versions import expected_versions
from midstream.migrate.journal.certificate import CLAIM_FAILED, NOT_CHECKED
from midstream.migrate.proof.environment_claim import effective, engine_environment_claim
from midstream_host.machine.checks import Survey


def check_environment(target: Host, config: HostConfig, survey: Survey, versions: Mapping[str, str]) -> Check:
    """Compare the source's packages with those that the target will have."""
    before = effective(versions)
    claim = engine_environment_claim(before, expected_versions(target, config, survey, before))
    hint = "python: in the fleet file names an environment with the source's versions, if losses have to be the same"
    if claim.verdict == NOT_CHECKED:
        return Check(claim.name, PASS, f"{claim.statement} before the target starts; the certificate compares them")
    failed = claim.verdict == CLAIM_FAILED
    return Check(claim.name, WARN if failed else PASS, claim.statement, hint if failed else "")
