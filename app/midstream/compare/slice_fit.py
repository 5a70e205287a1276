"""Fit of a run's step on a slice before it costs money, or on a busy target."""

from __future__ import annotations

from collections.abc import Callable

from midstream.check.check_result import FAIL, PASS, WARN, Check
from midstream.compare.candidates import Candidate
from midstream.compare.comparison import ComparisonRow, row
from midstream.compare.compiler import Compilers
from midstream.compare.subject import Subject
from midstream.counts import count
from midstream.errors import Exit, MidstreamError, UsageError
from midstream.format import size
from midstream.hosts.host_pool import HostPool
from midstream.install.reporter import Reporter, reporter_of

NAME = "fit"
ESTIMATE = "an estimate by the compiler"  # nothing has run there


def require_fit(
    hosts: HostPool, name: str, subject_of: Callable[[], Subject], say: Callable[[str], None]
) -> ComparisonRow | None:
    """Refuse a slice that a step cannot fit, before it is created.

    Returns the estimate, if there is one.

    Args:
        hosts: Connections to the fleet's hosts.
        name: The target, one whose slice a provider creates. One with virtual devices is not compiled for.
        subject_of: Returns what is compiled.
        say: Receives the progress and the result; a reporter, or a function.

    Raises:
        MidstreamError: The step does not fit.
    """
    target = hosts.fleet.slice_of(name)
    if target is not None and target.is_virtual:
        return None
    check, comparison = slice_fit(hosts, name, subject_of, reporter_of(say))
    if check.state == FAIL:
        raise MidstreamError(f"{name} is not created: {check.detail}", check.hint, Exit.REFUSED)
    say(f"midstream: {name}: {check.detail}" + (f" ({check.hint})" if check.hint else ""))
    return comparison


def slice_fit(
    hosts: HostPool, name: str, subject_of: Callable[[], Subject], report: Reporter
) -> tuple[Check, ComparisonRow | None]:
    """Compile a run's step for the slice of a target, and say whether it fits.

    Args:
        hosts: Connections to the fleet's hosts.
        name: The target, one whose slice a provider creates.
        subject_of: Returns what is compiled.
        report: Receives the progress.

    Returns:
        A check that fails where the step cannot fit, and warns where that cannot be found out; and the estimate.
    """
    target = hosts.fleet.slices[name]
    accelerators = target.accelerators
    unknown = f"whether a step fits {name} is not known before it exists"
    if accelerators is None:
        return Check(NAME, WARN, f"{unknown}: {target.kind} is not in the table of accelerators"), None
    candidate = Candidate(name, accelerators, name, target.price_per_hour)
    return candidate_fit(hosts, candidate, subject_of, report, unknown)


def candidate_fit(
    hosts: HostPool,
    candidate: Candidate,
    subject_of: Callable[[], Subject],
    report: Reporter,
    unknown: str,
    source: str = "",
) -> tuple[Check, ComparisonRow | None]:
    """Compile a step for a target's accelerators, and say whether it fits.

    Args:
        hosts: Connections to the fleet's hosts.
        candidate: The target.
        subject_of: Returns what is compiled.
        report: Receives the progress.
        unknown: Begins the warning where nothing can be compiled.
        source: Where its accelerators are known from, if not from its hosts.

    Returns:
        As :func:`slice_fit`.
    """
    try:
        subject = subject_of()
    except MidstreamError as error:
        return Check(NAME, WARN, f"{unknown}: {error.message}", error.hint), None
    try:
        estimate = Compilers(hosts.fleet, hosts, None, report).estimate(
            subject.config, subject.overrides, candidate.accelerators
        )
    except UsageError as error:
        return Check(NAME, FAIL, error.message, error.hint), None
    except MidstreamError as error:
        return Check(NAME, WARN, f"{unknown}: {error.message}", error.hint), None
    comparison = row(subject, candidate, estimate, None)
    by = f"; {ESTIMATE} for {candidate.accelerators.name}" + (f", {source}" if source else "")
    needed = f"needs {size(estimate.needed)} a device" if estimate.needed else "needs more memory than a device has"
    has = f" of {size(estimate.device_memory)}" if estimate.device_memory else ""
    if not estimate.fits:
        return Check(
            NAME, FAIL, f"a step with one example at a time {needed}{has}{by}", "choose a larger slice or more hosts"
        ), comparison
    if not estimate.fits_as_configured:
        detail = f"a step with {count(estimate.configured, 'example')} at a time {needed}{has}{by}"
        return Check(NAME, FAIL, detail, f"-- --trainer.per_device_parallelism {estimate.largest} fits"), comparison
    assert estimate.memory is not None
    assert comparison.step is not None
    return Check(
        NAME,
        PASS,
        f"{count(estimate.configured, 'example')} at a time, {size(estimate.memory.peak)}{has}, "
        f"about {comparison.step.value:.3g} s a step ({comparison.step.low:.3g} to {comparison.step.high:.3g}){by}",
    ), comparison
