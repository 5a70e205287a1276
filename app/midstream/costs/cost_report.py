"""Hours and money by host, run and migration in a period.

Definitions (docs/reference/costs.md has them for users). All sets of time are clipped to the period.

- *process*: from the start of an engine process to its exit.
- *training*: within a process, from the begin of the attempt's first step to the end of its last one.
- *preparing*: a process runs, and none trains: installing, compiling, restoring, on standby, saving at the end.
- *on*: a slice since its creation, another host since its last boot, and each process before that.
- *idle*: on, without any process of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from midstream.costs import intervals
from midstream.costs.intervals import Intervals
from midstream.costs.prices import Prices
from midstream.counts import agree, count
from midstream.fleet.fleet import Fleet
from midstream.format import age_since, money, seconds
from midstream.json_events.cost_events import HostCostEvent, MigrationCostEvent, RunCostEvent, TotalCostEvent
from midstream.migrate.journal.migration_view import MigrationView
from midstream_host.runs.run_times import HostTimes, ProcessTimes

HOUR = 3600.0
TIMES = ("on", "training", "preparing", "idle")


@dataclass(frozen=True)
class HostCost:
    """Cost of one host.

    Times in seconds; money in the currency of the fleet file's prices; None: no price.
    """

    host: str
    price: float | None  # an hour
    accelerators: int  # that the newest process computed on; 0: not known
    known_since: float | None  # UTC seconds: begin of the continuous time that ends now; None: not known to be on
    on: float
    training: float
    preparing: float
    idle: float

    @property
    def cost(self) -> float | None:
        return _money(self.price, self.on)

    @property
    def idle_cost(self) -> float | None:
        return _money(self.price, self.idle)

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the tables of hosts."""
        times = (hours_text(getattr(self, name)) for name in TIMES)
        return (self.host, money_text(self.price), *times, money_text(self.cost), money_text(self.idle_cost))

    def event(self) -> HostCostEvent:
        """Return the line of ``--json``; accelerator hours where their number is known."""
        return HostCostEvent(
            host=self.host,
            price_per_hour=self.price,
            accelerators=self.accelerators or None,
            known_since=self.known_since,
            **{f"{name}_hours": getattr(self, name) / HOUR for name in TIMES},
            idle_accelerator_hours=self.idle / HOUR * self.accelerators if self.accelerators else None,
            cost=self.cost,
            idle_cost=self.idle_cost,
        )


@dataclass(frozen=True)
class RunCost:
    """Cost of one run, over all hosts that its processes ran on.

    ``hours`` of a host with several processes count once.
    """

    run_id: str
    hosts: tuple[str, ...]
    processes: float  # seconds, of all hosts together
    training: float
    cost: float | None  # None where a host has no price

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the tables of runs."""
        times = hours_text(self.processes), hours_text(self.training)
        return (self.run_id, "+".join(self.hosts), *times, money_text(self.cost))

    def event(self) -> RunCostEvent:
        """Return the line of ``--json``."""
        hours = {"process_hours": self.processes / HOUR, "training_hours": self.training / HOUR}
        return RunCostEvent(run=self.run_id, hosts=list(self.hosts), **hours, cost=self.cost)


@dataclass(frozen=True)
class MigrationCost:
    """Cost of one migration.

    The cost counts the target while it was prepared, and both sides during the downtime.
    """

    migration: str
    run_id: str
    source: str
    target: str
    state: str
    preparation: float  # seconds
    downtime: float  # seconds
    cost: float | None

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the tables of migrations."""
        times = seconds(self.preparation), seconds(self.downtime)
        return (self.migration, self.source, self.target, self.state, *times, money_text(self.cost))

    def event(self) -> MigrationCostEvent:
        """Return the line of ``--json``."""
        return MigrationCostEvent(
            migration=self.migration,
            run=self.run_id,
            source=self.source,
            target=self.target,
            state=self.state,
            preparation_seconds=self.preparation,
            downtime_seconds=self.downtime,
            cost=self.cost,
        )


@dataclass(frozen=True)
class CostReport:
    """Costs of hosts, runs and migrations in a period."""

    since: float  # UTC seconds
    until: float
    hosts: tuple[HostCost, ...] = ()
    runs: tuple[RunCost, ...] = ()
    migrations: tuple[MigrationCost, ...] = ()
    not_known: tuple[str, ...] = ()  # one line each: what is missing from the numbers
    not_known_of_hosts: tuple[str, ...] = ()  # those about the hours of hosts without a process

    @property
    def cost(self) -> float | None:
        """Cost of all hosts that have a price; None if none has."""
        return _sum(host.cost for host in self.hosts)

    @property
    def idle_cost(self) -> float | None:
        return _sum(host.idle_cost for host in self.hosts)

    @property
    def without_price(self) -> tuple[str, ...]:
        """Hosts without a price, which the totals do not contain."""
        return tuple(host.host for host in self.hosts if host.price is None)

    def total(self) -> TotalCostEvent:
        """Return the totals of all hosts. Runs and migrations are parts of them."""
        times = {name: sum(getattr(host, name) for host in self.hosts) for name in TIMES}
        return TotalCostEvent(
            since=self.since,
            until=self.until,
            **{f"{name}_hours": value / HOUR for name, value in times.items()},
            cost=self.cost,
            idle_cost=self.idle_cost,
            without_price=list(self.without_price),
        )


@dataclass
class _HostUse:
    """Times of one host, as sets."""

    on: list[Intervals] = field(default_factory=list[Intervals])
    processes: Intervals = ()
    training: Intervals = ()
    accelerators: tuple[float, int] = (0.0, 0)  # (time, number) of the newest process that reported them


def make_report(
    fleet: Fleet,
    times: Mapping[str, HostTimes],
    migrations: Sequence[MigrationView],
    period: tuple[float, float],
    *,
    created: Mapping[str, float] = {},
    not_known: Iterable[str] = (),
) -> CostReport:
    """Add up what hosts, runs and migrations have cost.

    Args:
        fleet: The fleet, whose prices count.
        times: Host -> the times that it reported, by the operator's clock (see ``shifted``).
        migrations: Migrations of this fleet.
        period: Begin and end in UTC seconds.
        created: Worker -> creation of its slice, in UTC seconds.
        not_known: Lines about hosts that did not answer.
    """
    missing, of_hosts = list(not_known), list[str]()
    uses: dict[str, _HostUse] = {}
    runs: dict[str, dict[str, tuple[Intervals, Intervals]]] = {}
    for (run_id, host), process_times in _by_run_and_host(fleet, times).items():
        processes, training = _sets(process_times, period)
        if not processes:
            continue
        runs.setdefault(run_id, {})[host] = processes, training
        use = uses.setdefault(host, _HostUse())
        use.processes = intervals.union(use.processes, processes)
        use.training = intervals.union(use.training, training)
        newest = max((process.started or process.first_step or 0.0, process.devices) for process in process_times)
        use.accelerators = max(use.accelerators, newest)
    booted: dict[str, list[str]] = {}  # how long ago -> hosts
    for host, host_times in times.items():
        use = uses.setdefault(host, _HostUse())
        began = created.get(host, host_times.booted)
        if began is None:
            of_hosts.append(f"{host}: does not report since when it has been on; only its processes count")
        else:
            use.on.append(_clipped(((began, host_times.now),), period))
            if began > period[0] and host not in created:
                booted.setdefault(f"{age_since(began, period[1])} ago", []).append(host)
        missing += [f"{host}: {line}" for line in host_times.unreadable]
        if host_times.omitted:
            missing.append(
                f"{host}: {count(host_times.omitted, 'older process', 'older processes')} "
                f"{agree(host_times.omitted)} left out"
            )
    for ago, names in booted.items():
        of_hosts.append(f"{', '.join(names)}: booted {ago}; of the time before, only the hours of processes count")
    prices = Prices(fleet, uses)
    for host in sorted(set(uses) - set(times)):
        missing.append(f"{host}: only what copies of its runs' records contain")
    return CostReport(
        *period,
        hosts=tuple(_host(host, use, prices, period) for host, use in sorted(uses.items())),
        runs=tuple(_run(run_id, hosts, prices) for run_id, hosts in sorted(runs.items())),
        migrations=tuple(
            _migration(view, prices, period[1]) for view in migrations if view.plan.identity.created >= period[0]
        ),
        not_known=(*missing, *of_hosts),
        not_known_of_hosts=tuple(of_hosts),
    )


def shifted(times: HostTimes, now: float) -> HostTimes:
    """Return times of a host's clock as times of the operator's, which shows ``now``."""
    skew = times.now - now

    def move(value: float | None) -> float | None:
        return None if value is None else value - skew

    processes = [
        ProcessTimes(
            **{
                **vars(process),
                "started": move(process.started),
                "ended": move(process.ended),
                "first_step": move(process.first_step),
                "last_step": move(process.last_step),
            }
        )
        for process in times.processes
    ]
    return HostTimes(now, move(times.booted), processes, times.unreadable, times.omitted)


def hours_text(seconds: float) -> str:
    """Format seconds as hours: ``0.02 h``, ``31.5 h``."""
    return f"{seconds / HOUR:.2f} h" if seconds < 10 * HOUR else f"{seconds / HOUR:,.1f} h"


def money_text(value: float | None) -> str:
    """Format an amount of money; ``-`` where there is no price."""
    return "-" if value is None else money(value)


def _by_run_and_host(fleet: Fleet, times: Mapping[str, HostTimes]) -> dict[tuple[str, str], list[ProcessTimes]]:
    """Return the processes by run and by the host that they ran on, each process once.

    Hosts may share a root, and a copied history has the processes of another host. A process that was started from a
    host counts with that host's record of it.
    """
    processes: dict[tuple[str, int, int, str], ProcessTimes] = {}
    steps: dict[tuple[str, int], tuple[float | None, float | None]] = {}
    for answered, host_times in times.items():
        for process in host_times.processes:
            host = process.host or answered
            if process.launched and host not in fleet.hosts:
                host = answered  # a compute node of SLURM, or a host that was renamed in the fleet file
            key = process.run_id, process.attempt, process.process, host
            if key not in processes or (process.launched and not processes[key].launched):
                processes[key] = process
            if process.first_step is not None:
                steps[process.run_id, process.attempt] = process.first_step, process.last_step
    grouped: dict[tuple[str, str], list[ProcessTimes]] = {}
    for (run_id, attempt, _, host), process in processes.items():
        if process.first_step is None and (run_id, attempt) in steps:  # only the host of process 0 has the metrics
            first, last = steps[run_id, attempt]
            process = ProcessTimes(**{**vars(process), "first_step": first, "last_step": last})
        grouped.setdefault((run_id, host), []).append(process)
    return grouped


def _sets(process_times: Sequence[ProcessTimes], period: tuple[float, float]) -> tuple[Intervals, Intervals]:
    """Return the time of processes, and the part of it in which they trained."""
    processes: list[Intervals] = []
    training: list[Intervals] = []
    for process in process_times:
        begin = process.started if process.started is not None else process.first_step
        if process.running:
            end = period[1]
        else:
            end = max((value for value in (process.ended, process.last_step) if value is not None), default=None)
        if begin is None or end is None:
            continue
        clipped = _clipped(((begin, end),), period)
        processes.append(clipped)
        if process.first_step is not None and process.last_step is not None:
            training.append(intervals.common(clipped, ((process.first_step, process.last_step),)))
    return intervals.union(*processes), intervals.union(*training)


def _clipped(spans: Sequence[tuple[float, float]], period: tuple[float, float]) -> Intervals:
    return intervals.union((max(begin, period[0]), min(end, period[1])) for begin, end in spans)


def _host(host: str, use: _HostUse, prices: Prices, period: tuple[float, float]) -> HostCost:
    on = intervals.union(*use.on, use.processes)
    return HostCost(
        host,
        prices.host(host),
        use.accelerators[1],
        on[-1][0] if on and on[-1][1] >= period[1] - 1 else None,
        intervals.seconds(on),
        intervals.seconds(use.training),
        intervals.seconds(intervals.without(use.processes, use.training)),
        intervals.seconds(intervals.without(on, use.processes)),
    )


def _run(run_id: str, hosts: Mapping[str, tuple[Intervals, Intervals]], prices: Prices) -> RunCost:
    seconds = {host: intervals.seconds(processes) for host, (processes, _) in hosts.items()}
    costs = [_money(prices.host(host), value) for host, value in seconds.items()]
    return RunCost(
        run_id,
        tuple(sorted(hosts)),
        sum(seconds.values()),
        sum(intervals.seconds(training) for _, training in hosts.values()),
        None if None in costs else sum(cost for cost in costs if cost is not None),
    )


def _migration(view: MigrationView, prices: Prices, now: float) -> MigrationCost:
    """Return a migration's cost.

    The definition is the same as of the plan's estimate (`migrate.cost`).
    """
    plan, facts, report = view.plan, view.facts, view.downtime
    last = now if view.open else max((event.time for event in view.events), default=plan.identity.created)
    stopped = report.last_step_ended if report and report.last_step_ended is not None else facts.seal_started_at
    resumed = report.first_step_ended if report and report.first_step_ended is not None else None
    if resumed is None:
        resumed = facts.training_confirmed_at or facts.rolled_back_at
    preparation = max(0.0, (last if stopped is None else stopped) - plan.identity.created)
    downtime = 0.0 if stopped is None else max(0.0, (last if resumed is None else resumed) - stopped)
    source = prices.group(plan.route.source_hosts or (plan.source,))
    target = prices.group(plan.route.target_hosts or (plan.target_host,))
    if source is None:
        source = plan.estimate.cost_per_hour[0]
    if target is None:
        target = plan.estimate.cost_per_hour[1]
    cost = None
    if source is not None and target is not None:
        cost = (target * (preparation + downtime) + source * downtime) / HOUR
    return MigrationCost(view.migration, plan.run_id, plan.source, plan.target, view.state, preparation, downtime, cost)


def _money(price: float | None, seconds: float) -> float | None:
    return None if price is None else price * seconds / HOUR


def _sum(costs: Iterable[float | None]) -> float | None:
    amounts = [cost for cost in costs if cost is not None]
    return sum(amounts) if amounts else None
