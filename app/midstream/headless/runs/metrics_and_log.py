"""`--metrics` and `--log`: the curves and the log of a run as lines."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from midstream.counts import agree, count
from midstream.errors import Exit, MidstreamError, RemoteError, UsageError
from midstream.json_events.result_event import SearchResult
from midstream.json_events.run_events import LogEvent, MetricsEvent, PlotEvent
from midstream.operations.fleet_snapshot import find_run, fleet_snapshot, run_of
from midstream.output import Output, table
from midstream_core import records

if TYPE_CHECKING:
    from pathlib import Path

    from midstream.charts.chart import Chart
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host import Host
    from midstream.listing.linear_pattern import LinearPattern
    from midstream.watch.snapshot import RunView


def metrics(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """Print one line per step of the spliced curve, with all metrics under ``--json``.

    Several runs are printed as a table of their losses. With ``--system``, the metrics of their hosts are printed.
    """
    from midstream.headless.runs.show_system import show_system
    from midstream.hosts.host_pool import HostPool

    if options.plot and options.system is not None:
        raise UsageError("--plot and --system exclude each other", "the terminal UI draws system metrics")
    plot = _chart_of(options) if options.plot else None
    names = list(dict.fromkeys(options.metrics.split(",")))
    hosts = HostPool(fleet)
    try:
        if options.system is not None:
            return show_system(hosts, names, options.system, output)
        snapshot = fleet_snapshot(hosts)
        runs = [run_of(snapshot, name) for name in names]
    finally:
        hosts.close()
    if plot is not None:
        return _plot(*plot, runs, output)
    if len(runs) > 1 and not output.as_json:
        output.value({}, table([("STEP", *names), *_side_by_side(runs)]))
        return Exit.DONE
    for run in runs:
        _print_rows(run, output)
    return Exit.DONE


def _chart_of(options: argparse.Namespace) -> tuple[Path, Chart]:
    """Return the file and the empty chart that the flags describe.

    Raises:
        UsageError: A flag is invalid.
    """
    from midstream.charts.chart import NO_RANGE, Chart, parse_range
    from midstream.charts.chart_file import check_path
    from midstream.charts.smoothing import parse_factor

    return check_path(options.plot), Chart(
        options.metric or "train/loss",
        (),
        options.x_axis or "step",
        log_x=options.log_x,
        log_y=options.log_y,
        smoothing=parse_factor(options.smoothing) if options.smoothing else 0.0,
        x_range=parse_range(options.x_range, "--x-range") if options.x_range else NO_RANGE,
        y_range=parse_range(options.y_range, "--y-range") if options.y_range else NO_RANGE,
    )


def _plot(path: Path, chart: Chart, runs: Sequence[RunView], output: Output) -> int:
    """Write the chart of the runs to a file."""
    from midstream.charts.chart_file import write_chart
    from midstream.charts.run_lines import lines_of, metric_names
    from midstream.fleet.fleet import nearest

    metric = chart.metric
    chart = replace(chart, lines=lines_of(runs, metric, chart.axis))
    if not chart.lines:
        names = ", ".join(run.run_id for run in runs)
        raise UsageError(f"no points of {metric!r} in {names}", nearest(metric, metric_names(runs)))
    write_chart(chart, path)
    points = sum(len(line.x) for line in chart.lines)
    event = PlotEvent(path=str(path.absolute()), metric=metric, points=points)
    output.event(event, f"{path.absolute()}: {metric}, {count(points, 'point')}")
    return Exit.DONE


def _side_by_side(runs: Sequence[RunView]) -> list[tuple[str, ...]]:
    """Return a row for each step with a loss of at least one run."""
    losses = [{row["global_step"]: row["train/loss"] for row in run.curve if "train/loss" in row} for run in runs]
    return [(str(step), *(_number(known.get(step)) for known in losses)) for step in sorted(set[int]().union(*losses))]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _print_rows(run: RunView, output: Output) -> None:
    for row in run.curve:
        words = [f"step {row['global_step']}", f"attempt {row['attempt']}"]
        words += [f"{name} {row[name]:.6g}" for name in ("train/loss", "eval/loss") if row.get(name) is not None]
        event = MetricsEvent(run=run.run_id, global_step=row["global_step"], attempt=row["attempt"], values=row)
        output.event(event, "  ".join(words))


def log(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """Print the log of one process of the newest attempt.

    With ``--search``, print the lines with a match.
    With ``--follow`` its last lines are printed, then new ones.
    """
    from midstream.hosts.host_pool import HostPool
    from midstream.launch.attempt_monitor import ranks_of
    from midstream.watch.host_log import read_log

    if options.follow and options.search is not None:
        raise UsageError("--follow and --search exclude each other", "midstream --log RUN --follow | grep WORD")
    process: int = options.process
    pattern = _pattern(options.search) if options.search is not None else None  # before any host is connected
    hosts = HostPool(fleet)
    try:
        run = find_run(hosts, options.log)
        ranks = ranks_of(hosts, run.host, run.run_id, run.attempt)
        if not 0 <= process < len(ranks):
            raise UsageError(f"{run.run_id} has no process {process}", f"it has {len(ranks)}, from 0 on")
        host = hosts.get(ranks[process].host)
        path = _log_path(host, run, process)
        if options.follow:
            from midstream.headless.runs.follow_log import follow_log

            return follow_log(host, path, run, output)
        lines = (line for part in read_log(host, path) for line in part.removesuffix("\n").split("\n"))
        if pattern is not None:
            return _print_matches(run, lines, pattern, output)
        for line in lines:
            output.event(_line_event(run, line), [line.removesuffix("\r")])
    finally:
        hosts.close()
    return Exit.DONE


def _log_path(host: Host, run: RunView, process: int) -> str:
    """Return the log of a process, or else the output of its job of SLURM.

    Raises:
        MidstreamError: There is neither.
    """
    from midstream_host.runs import run_state, slurm

    attempt = records.RunPaths(host.root, run.run_id).attempt(run.attempt)
    for path in (attempt.log(process), f"{attempt.dir}/{slurm.OUTPUT}"):
        try:
            host.call(run_state.read_text)(path=path, limit=1)
        except RemoteError as error:
            if error.kind != "FileNotFoundError":
                raise
        else:
            return path
    raise MidstreamError(
        f"process {process} of attempt {run.attempt} of {run.run_id} has written no log", run.job_remark
    )


def _line_event(run: RunView, line: str, number: int | None = None) -> LogEvent:
    return LogEvent(run=run.run_id, attempt=run.attempt, line=line, number=number)


def _pattern(text: str) -> LinearPattern:
    from midstream.listing.linear_pattern import LinearPattern, PatternError

    try:
        return LinearPattern(text)
    except PatternError as error:
        raise UsageError(f"--search, column {error.position + 1}: {error}") from error


def _print_matches(run: RunView, lines: Iterable[str], pattern: LinearPattern, output: Output) -> int:
    """Print the lines that match, with their numbers, then the counts of both."""
    from midstream_host.runs import log_pages

    number = matches = 0
    for number, line in enumerate(lines, 1):
        text = log_pages.plain(line)
        if pattern.search(text):
            matches += 1
            output.event(_line_event(run, line, number), [f"{number}: {text}"])
    output.event(SearchResult(matches=matches, lines=number))
    if not output.as_json:
        output.message(f"midstream: {matches:,} of {count(number, 'line')} {agree(matches, 'matches', 'match')}")
    return Exit.DONE
