"""Estimates of a run or a config on other accelerators, and what they do not show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from midstream.compare.baseline import Baseline
    from midstream.compare.comparison import ComparisonRow
    from midstream.compare.subject import Subject
    from midstream.hosts.host_pool import HostPool
    from midstream.install.reporter import Reporter
    from midstream.watch.snapshot import Snapshot


@dataclass(frozen=True)
class CompareRequest:
    """Accelerators and targets that a run or config is compared with."""

    names: str  # of accelerators and targets, with commas
    prices: Mapping[str, float] = field(default_factory=dict[str, float])  # of an hour by name; else the fleet file's
    compile_on: str | None = None  # host that compiles; None: this machine


def compare(
    hosts: HostPool,
    subject: Subject,
    request: CompareRequest,
    snapshot: Snapshot | None,
    report: Reporter,
    cancel: Event | None = None,
) -> Iterator[Baseline | ComparisonRow]:
    """Yield what a run measures now, then an estimate for each name, by compiling.

    Args:
        hosts: Connections to the fleet's hosts.
        subject: The run or config.
        request: What it is compared with.
        snapshot: The fleet's hosts; None where no name is a target.
        report: Gets the progress.
        cancel: Compiling ends with an error once it is set.
    """
    from midstream.compare import compare as comparing
    from midstream.compare.baseline import baseline
    from midstream.compare.candidates import candidates
    from midstream.compare.compiler import Compilers

    fleet = hosts.fleet
    compared = candidates(request.names, fleet, snapshot, request.prices)
    present = baseline(subject.run)
    if present is not None:
        yield present
    yield from comparing.compare(fleet, subject, compared, Compilers(fleet, hosts, request.compile_on, report, cancel))


def calibration_notes(rows: Sequence[ComparisonRow]) -> list[str]:
    """Return lines on how the estimates compare with measured steps."""
    calibrations = {row.calibration for row in rows if row.calibration is not None}
    lines = sorted(calibration.describe() for calibration in calibrations)
    if any(row.calibration is None and row.step is not None for row in rows):
        lines.append("estimates of the compiled program, not measured on these accelerators yet")
    return lines
