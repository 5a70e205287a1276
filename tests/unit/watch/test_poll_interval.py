"""Poll interval, reconnection and concurrency limit."""

from __future__ import annotations

import random
import threading

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from midstream.hosts import deadline
from midstream.hosts.concurrency_limit import ConcurrencyLimit
from midstream.hosts.reconnect import CALL, FEED, MIGRATION, Reconnect
from midstream.watch import poll_interval
from midstream.watch.poll_interval import PollInterval
from support.module_time import replace_time


class Machine:
    """A clock with the processor time that passes on it."""

    def __init__(self) -> None:
        self.now = self.spent = 0.0

    def made(self, hosts: int, interval: float = 1.0) -> PollInterval:
        return PollInterval(interval, hosts, clock=lambda: self.now, spent=lambda: self.spent)

    def pass_by(self, seconds: float, cost: float) -> None:
        self.now += seconds
        self.spent += seconds * cost


def test_few_hosts_keep_their_interval_under_load() -> None:
    machine = Machine()
    made = machine.made(hosts=50)
    for _ in range(20):
        machine.pass_by(5.0, cost=1.0)
        assert not made.measure()
    assert made.seconds == 1.0


def test_many_hosts_start_with_a_longer_interval() -> None:
    assert Machine().made(hosts=200).seconds == 4.0
    assert Machine().made(hosts=10_000).seconds == poll_interval.MAX_INTERVAL


def test_interval_follows_the_measured_cost() -> None:
    machine = Machine()
    made = machine.made(hosts=200)
    machine.pass_by(5.0, cost=0.24)
    assert made.measure()
    assert made.seconds == 8.0
    machine.pass_by(5.0, cost=0.12)
    assert not made.measure()
    machine.pass_by(5.0, cost=0.02)
    assert made.measure()
    assert made.seconds == 6.4


def test_interval_is_stable_between_measurements() -> None:
    machine = Machine()
    made = machine.made(hosts=200)
    machine.pass_by(1.0, cost=1.0)
    assert not made.measure()


@seed(8)
@settings(max_examples=60, deadline=None, database=None)
@given(poll=st.floats(0.0001, 0.02), hosts=st.integers(60, 1000))
def test_cost_settles_at_the_target(poll: float, hosts: int) -> None:
    """``poll``: seconds of processor time for one poll of one host."""
    machine = Machine()
    made = machine.made(hosts)
    cost = 0.0
    for _ in range(60):
        cost = hosts * poll / made.seconds
        machine.pass_by(5.0, cost)
        made.measure()
    assert 1.0 <= made.seconds <= poll_interval.MAX_INTERVAL
    assert (
        cost <= poll_interval.TARGET_COST * poll_interval.COST_TOLERANCE * 1.01
        or made.seconds == poll_interval.MAX_INTERVAL
    )
    assert cost >= poll_interval.TARGET_COST / poll_interval.COST_TOLERANCE * 0.79 or made.seconds == 1.0


def test_delays_of_a_feed_double_to_a_limit_with_jitter() -> None:
    waits = [Reconnect(FEED, random.Random(number)).delay() for number in range(50)]
    assert len(set(waits)) == 50
    assert all(0.25 <= wait <= 0.5 for wait in waits)
    reconnect = Reconnect(FEED, random.Random(1))
    for number, delay in enumerate([reconnect.delay() for _ in range(100)]):
        longest = min(FEED.largest_delay, 0.5 * 2.0**number)
        assert longest / 2 <= delay <= longest
    assert not reconnect.exhausted(), "a watched host is tried for as long as it is watched"
    reconnect.reset()
    assert reconnect.delay() <= 0.5
    assert 2.5 <= reconnect.delay(least=5.0) <= 5.0


def test_contact_is_lost_after_tries_or_time_of_its_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Reconnect(CALL)
    delays = []
    while not calls.exhausted():
        delays.append(calls.delay())
    assert delays == [1.0, 1.0]
    now = [0.0]
    replace_time(monkeypatch, deadline, monotonic=lambda: now[0])
    migration = Reconnect(MIGRATION)
    for _ in range(40):
        assert not migration.exhausted()
        assert migration.delay() == 1.0
        now[0] += 15.0
    assert migration.exhausted()


def test_concurrency_limit_releases_slots_after_errors() -> None:
    limit = ConcurrencyLimit(1)
    for _ in range(3):
        with pytest.raises(KeyError), limit.slot(), limit.slot():
            raise KeyError


def test_concurrency_limit_bounds_slots_and_releases() -> None:
    limit, lock = ConcurrencyLimit(2), threading.Lock()
    inside, most = 0, 0
    waiting = threading.Barrier(6)

    def work() -> None:
        nonlocal inside, most
        with limit.slot():
            with limit.released():
                waiting.wait(20)  # all six have released: none has a slot
            for _ in range(20):
                with limit.slot(), lock:
                    inside += 1
                    most = max(most, inside)
                with lock:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert inside == 0
    assert 1 <= most <= 2
    with limit.released():  # no slot to release
        pass
