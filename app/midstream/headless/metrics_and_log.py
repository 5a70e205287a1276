"""`--metrics` and `--log`: the curves and the log of a run as lines."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from midstream.counts import agree, count
from midstream.errors import Exit, UsageError
from midstream.json_events.result_event import FollowResult, SearchResult
from midstream.json_events.run_events import LogEvent, MetricsEvent, PlotEvent
from midstream.operations.run_log import HostLost, LogMatch, RunLog, find_log
from midstream.operations.run_metrics import losses_by_step, plot_runs, runs_with_curves
from midstream.output import Output, table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from midstream.charts.chart import Chart
    from midstream.fleet.fleet import Fleet
    from midstream.operations.run_log import AttemptEnd
    from midstream.watch.log_query import LogQuery
    from midstream.watch.snapshot import RunView


def metrics(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """Print one line per step of the spliced curve, with all metrics under ``--json``.

    Several runs are printed as a table of their losses. With ``--system``, the metrics of their hosts are printed.
    """
    from midstream.headless.show_system import show_system
    from midstream.hosts.host_pool import HostPool

    if options.plot and options.system is not None:
        raise UsageError("--plot and --system exclude each other", "the terminal UI draws system metrics")
    plot = _chart_of(options) if options.plot else None
    names = list(dict.fromkeys(options.metrics.split(",")))
    hosts = HostPool(fleet)
    try:
        if options.system is not None:
            return show_system(hosts, names, options.system, output)
        runs = runs_with_curves(hosts, names)
    finally:
        hosts.close()
    if plot is not None:
        path, chart = plot
        points = plot_runs(runs, chart, path)
        event = PlotEvent(path=str(path.absolute()), metric=chart.metric, points=points)
        output.event(event, f"{path.absolute()}: {chart.metric}, {count(points, 'point')}")
    elif len(runs) > 1 and not output.as_json:
        rows = [(str(step), *map(_number, losses)) for step, losses in losses_by_step(runs)]
        output.value({}, table([("STEP", *names), *rows]))
    else:
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

    if options.follow and options.search is not None:
        raise UsageError("--follow and --search exclude each other", "midstream --log RUN --follow | grep WORD")
    query = _query(options.search) if options.search is not None else None  # before any host is connected
    hosts = HostPool(fleet)
    try:
        run_log = find_log(hosts, options.log, options.process)
        if options.follow:
            print_followed(run_log.run, run_log.follow(), output)
        elif query is not None:
            _print_matches(run_log, query, output)
        else:
            for line in run_log.lines():
                output.event(_line_event(run_log.run, line), [line.removesuffix("\r")])
    finally:
        hosts.close()
    return Exit.DONE


def print_followed(run: RunView, events: Iterator[str | HostLost | AttemptEnd], output: Output) -> None:
    """Print the lines of a log that is followed, and how its attempt has ended."""
    for event in events:
        if isinstance(event, str):
            output.event(_line_event(run, event), [event.removesuffix("\r")])
        elif isinstance(event, HostLost):
            output.message(f"midstream: {event.message}; trying again until it answers")
        else:
            state, step = (event.status.state, event.status.step) if event.status is not None else (None, None)
            output.event(FollowResult(run=run.run_id, attempt=run.attempt, state=state, step=step))
            how = f"{state} at step {step}" if state is not None else "it left no status"
            output.message(f"midstream: attempt {run.attempt} of {run.run_id} has ended: {how}")


def _line_event(run: RunView, line: str, number: int | None = None) -> LogEvent:
    return LogEvent(run=run.run_id, attempt=run.attempt, line=line, number=number)


def _query(text: str) -> LogQuery:
    from midstream.watch.log_query import SYNTAX, LogQuery

    query = LogQuery.parse(text)
    if not (query.words or query.excluded):
        raise UsageError("--search has no word", SYNTAX)
    return query


def _print_matches(log: RunLog, query: LogQuery, output: Output) -> None:
    """Print the lines that match, with their numbers, then the counts of both."""
    matches = 0
    for event in log.matches(query):
        if isinstance(event, LogMatch):
            matches += 1
            output.event(_line_event(log.run, event.line, event.number), [f"{event.number}: {event.text}"])
        else:
            output.event(SearchResult(matches=matches, lines=event.lines))
            if not output.as_json:
                words = f"{count(event.lines, 'line')} {agree(matches, 'matches', 'match')}"
                output.message(f"midstream: {matches:,} of {words}")
