"""How often one looks, how long one waits, how many go at once."""

from __future__ import annotations

import random
import threading

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from midstream.hosts.backoff import LONGEST, Backoff
from midstream.hosts.concurrency_limit import ConcurrencyLimit
from midstream.watch import poll_interval
from midstream.watch.poll_interval import Pace


class Machine:
    """A clock, and the processor time that goes by on it."""

    def __init__(self) -> None:
        self.now = self.spent = 0.0

    def made(self, hosts: int, interval: float = 1.0) -> Pace:
        return Pace(interval, hosts, clock=lambda: self.now, spent=lambda: self.spent)

    def pass_by(self, seconds: float, cost: float) -> None:
        self.now += seconds
        self.spent += seconds * cost


def test_few_hosts_keep_their_pace_whatever_else_the_process_does():
    machine = Machine()
    made = machine.made(hosts=50)
    for _ in range(20):
        machine.pass_by(5.0, cost=1.0)
        assert not made.measure()
    assert made.seconds == 1.0


def test_many_hosts_are_looked_at_seldomer_from_the_beginning():
    assert Machine().made(hosts=200).seconds == 4.0
    assert Machine().made(hosts=10_000).seconds == poll_interval.LONGEST


def test_what_costs_too_much_is_done_seldomer_and_what_costs_little_more_often():
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


def test_between_two_measurements_nothing_changes():
    machine = Machine()
    made = machine.made(hosts=200)
    machine.pass_by(1.0, cost=1.0)
    assert not made.measure()


@seed(8)
@settings(max_examples=60, deadline=None, database=None)
@given(look=st.floats(0.0001, 0.02), hosts=st.integers(60, 1000))
def test_the_cost_settles_at_what_is_aimed_at(look: float, hosts: int):
    """``look``: seconds of processor time for one look at one host."""
    machine = Machine()
    made = machine.made(hosts)
    cost = 0.0
    for _ in range(60):
        cost = hosts * look / made.seconds
        machine.pass_by(5.0, cost)
        made.measure()
    assert 1.0 <= made.seconds <= poll_interval.LONGEST
    assert cost <= poll_interval.AIM * poll_interval.MARGIN * 1.01 or made.seconds == poll_interval.LONGEST
    assert cost >= poll_interval.AIM / poll_interval.MARGIN * 0.79 or made.seconds == 1.0


def test_pauses_double_up_to_a_limit_and_are_never_the_same_for_all():
    waits = [Backoff(draw=random.Random(number)).pause() for number in range(50)]
    assert len(set(waits)) == 50
    assert all(0.25 <= wait <= 0.5 for wait in waits)
    backoff = Backoff(draw=random.Random(1))
    pauses = [backoff.pause() for _ in range(100)]
    for number, pause in enumerate(pauses):
        whole = min(LONGEST, 0.5 * 2.0**number)
        assert whole / 2 <= pause <= whole
    backoff.reset()
    assert backoff.pause() <= 0.5
    assert 2.5 <= backoff.pause(least=5.0) <= 5.0


def test_a_turn_that_raised_begins_anew():
    turns = ConcurrencyLimit(1)
    for _ in range(3):
        with pytest.raises(KeyError), turns.take(), turns.take():
            raise KeyError


def test_only_so_many_go_at_once_and_who_steps_aside_lets_others_go():
    turns, lock = ConcurrencyLimit(2), threading.Lock()
    inside, most = 0, 0
    waiting = threading.Barrier(6)

    def work() -> None:
        nonlocal inside, most
        with turns.take():
            with turns.aside():
                waiting.wait(20)  # all six are aside at once: none of them holds a turn
            for _ in range(20):
                with turns.take(), lock:
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
    with turns.aside():  # nothing to give up
        pass
