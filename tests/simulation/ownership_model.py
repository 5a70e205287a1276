"""Abstract model of a run's ownership during a migration, explored breadth first to its end.

One migration of a run from host ``A`` to host ``B``, a rollback by a second operator who has an older copy of the state
directory, a second migration, an engine that exits and is requeued. Every call may take effect while its answer is
lost: the caller makes it again. `ownership_rules` has what the hosts do; here is in which order programs call them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from simulation import ownership_rules as rules
from simulation.ownership_judgements import ONE, known_chain, later_owner, may_have_started, returned_fence
from simulation.ownership_rules import Engine, Fence, Host, Link, PartlyRefused, Refused
from simulation.ownership_state import (
    ANSWERED,
    BACK,
    CLOSE,
    CLOSE_FENCE,
    COMMAND,
    DONE,
    ENDED,
    FENCE,
    GIVEN_UP,
    HAND_OVER,
    LOCK,
    OWNS,
    READ,
    RELAUNCH,
    RELEASE,
    REOPEN,
    RESTART,
    SEALED,
    START,
    WITHDRAW,
    Committed,
    Return,
    State,
)

OTHER = "M2"  # a second migration


class ModelError(AssertionError):
    """A reachable state breaks an invariant."""


@dataclass(frozen=True)
class Bounds:
    """Size of an exploration."""

    steps: int = 2  # newest step that an engine saves
    crashes: int = 1
    deaths: int = 0
    rollback: bool = True
    other: bool = False


@dataclass
class Explored:
    """Result of an exploration.

    Attributes:
        states: Number of states.
        calls: Every distinct call of a host (rule, host, arguments): whether it was answered, and the host after it.
        judgements: Every distinct judgement of an operator's program (function, arguments), with its result.
        ends: Where the migration's process and the rollback ended.
    """

    states: int = 0
    calls: dict[tuple[Any, ...], tuple[bool, Host]] = field(default_factory=dict)
    judgements: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    ends: set[tuple[int, int | None]] = field(default_factory=set)


def first_state(bounds: Bounds) -> State:
    """Return a run that trains on A."""
    fence = Fence(1, "A", start=1, starts=((1, 0, None),))
    host = Host(fence, engine=Engine(1, 1, 1, 1, 0), saves=((1, 1, 1, 1),))
    return State(host, Host(), other=0 if bounds.other else -1, crashes=bounds.crashes, deaths=bounds.deaths)


class Model:
    """The moves of a state. ``broken``: rules in place of those that `ownership_rules` has, by name."""

    def __init__(self, bounds: Bounds, broken: dict[str, Callable[..., Any]] | None = None) -> None:
        self.bounds, self.explored, self._broken = bounds, Explored(), broken or {}

    def explore(self) -> Explored:
        """Visit every state that can be reached. Raises ModelError with the moves that lead to a broken one."""
        first = first_state(self.bounds)
        before: dict[State, tuple[State, str] | None] = {first: None}
        waiting = deque([first])
        while waiting:
            state = waiting.popleft()
            try:
                self._check(state)
                moves = list(self._moves(state))
                if not any(name not in ("time", "begin") for name, _ in moves):
                    self._check_end(state)
            except ModelError as error:
                raise ModelError(f"{error}: {' / '.join(_path(before, state))}") from None
            for name, after in moves:
                if after not in before:
                    before[after] = state, name
                    waiting.append(after)
        self.explored.states = len(before)
        return self.explored

    # ------------------------------------------------------------------------------------------ invariants

    def _check(self, state: State) -> None:
        if rules.may_commit(state.a) and rules.may_commit(state.b):
            raise ModelError("two starts may commit")

    def _check_end(self, state: State) -> None:
        """Check that the run trains where nothing more happens.

        Unless an engine has exited by itself, or another migration has the run.
        """
        rollback = state.rollback
        self.explored.ends.add((state.process.at, None if rollback is None else rollback.at))
        given_up = rollback is not None and rollback.at == GIVEN_UP
        if state.deaths < self.bounds.deaths or state.other > 0 or given_up:
            return
        if not (rules.may_commit(state.a) or rules.may_commit(state.b)):
            raise ModelError("no start may commit, and nothing more happens")

    def _committed(self, state: State, name: str, engine: Engine) -> State:
        """Return the state with a commit of an engine. Raises ModelError where it does not continue the line."""
        newest, start = state.newest, engine.start or 0
        same = (newest.host, newest.attempt, newest.start) == (name, engine.attempt, start)
        if same and engine.step <= newest.step:
            raise ModelError(f"step {engine.step} is committed twice")
        agreed = state.rollback is not None  # the user agrees to lose what the target has done
        if not same and engine.restored != newest.step and not agreed:
            raise ModelError(f"start {start} of attempt {engine.attempt} goes on from {engine.restored}, not {newest}")
        if not same and engine.step != engine.restored + 1:
            raise ModelError(f"attempt {engine.attempt} commits beside {newest}")
        return state._replace(newest=Committed(name, engine.attempt, start, engine.step))

    # ------------------------------------------------------------------------------------------ moves

    def _moves(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._engine_moves(state, "a")
        yield from self._engine_moves(state, "b")
        yield from self._process_moves(state)
        yield from self._rollback_moves(state)
        yield from self._other_moves(state)

    def _call(self, name: str, host: Host, *arguments: Any) -> Host:
        """Apply a rule to a host, and note what it does."""
        key = (name, host, *arguments)
        rule = self._broken.get(name) or getattr(rules, name)
        try:
            after = rule(host, *arguments)
        except PartlyRefused as error:
            self.explored.calls[key] = False, error.host
            raise
        except Refused:
            self.explored.calls[key] = False, host
            raise
        self.explored.calls[key] = True, after
        return after

    def _judge(self, judgement: Callable[..., Any], *arguments: Any) -> Any:
        """Judge as an operator's program does, and note it."""
        result = self.explored.judgements[judgement.__name__, *arguments] = judgement(*arguments)
        return result

    def _engine_moves(self, state: State, name: str) -> Iterator[tuple[str, State]]:
        host: Host = getattr(state, name)
        engine = host.engine
        if state.dead is not None and state.dead[0] == name and engine is None:
            again = state.dead[1]
            requeued = Engine(again.attempt, again.epoch, None, again.restored, again.restored)
            yield f"requeue {name}", state._replace(dead=None, **{name: host._replace(engine=requeued)})
        if engine is None:
            return
        ended = state._replace(**{name: host._replace(engine=None)})
        if state.deaths:
            yield f"engine {name} exits", ended._replace(deaths=state.deaths - 1, dead=(name, engine))
        if engine.start is None:
            yield f"{name} takes a number", self._after(state, name, ended, "take_number")
            return
        if engine.step < self.bounds.steps:
            after = self._after(state, name, ended, "commit")
            saved = getattr(after, name).engine
            yield f"{name} saves", after if saved is None else self._committed(after, name, saved)
        if host.command is not None:
            action, _, epoch, owner = host.command
            if action == rules.SAVE:
                yield f"{name} answers", state._replace(**{name: host._replace(command=None)})
            else:
                yield f"{name} seals", self._after(state, name, ended, "seal_and_exit", epoch, owner)

    def _after(self, state: State, name: str, ended: State, rule: str, *arguments: Any) -> State:
        """Return the state after a rule of an engine, which exits where it is refused."""
        try:
            return state._replace(**{name: self._call(rule, getattr(state, name), *arguments)})
        except Refused:
            return ended

    def _calls(
        self, state: State, actor: str, name: str, rule: str, arguments: tuple[Any, ...], done: Any, refused: Any
    ) -> Iterator[tuple[str, State]]:
        """Yield what a call of an actor may lead to: its answer, a lost answer, a refusal."""
        try:
            after = state._replace(**{name: self._call(rule, getattr(state, name), *arguments)})
        except PartlyRefused as error:
            yield f"{actor}: {rule} {name} refused", state._replace(**{actor: refused, name: error.host})
        except Refused:
            yield f"{actor}: {rule} {name} refused", state._replace(**{actor: refused})
        else:
            yield f"{actor}: {rule} {name}, answer lost", after
            yield f"{actor}: {rule} {name}", after._replace(**{actor: done})

    def _process_moves(self, state: State) -> Iterator[tuple[str, State]]:
        me, a = state.process, state.a
        if me.at in (DONE, ENDED):
            return
        ended = me._replace(at=ENDED)
        if state.crashes:
            again = me._replace(at=RELAUNCH if me.at > RELAUNCH else me.at, number=me.number + "x", permission="")
            yield "process: crash", state._replace(process=again, crashes=state.crashes - 1)
        if me.permission == "fresh":
            yield "time", state._replace(process=me._replace(permission="old"))
        if me.at == LOCK:
            yield from self._calls(state, "process", "a", "acquire", (ONE, 2, "B"), me._replace(at=COMMAND), ended)
        elif me.at == COMMAND:
            done = me._replace(at=SEALED)
            if a.engine is not None:
                yield from self._calls(state, "process", "a", "send", (rules.STOP, ONE, 2, "B"), done, ended)
            else:
                step = max(rules.accepted_steps(a))
                yield from self._calls(state, "process", "a", "seal", (2, "B", step, ONE), done, ended)
        elif me.at == SEALED:
            yield from self._await_seal(state)
        elif me.at in (HAND_OVER, RELAUNCH):
            yield from self._hand_over(state)
        elif me.at == FENCE:
            arguments = (me.sealed, ONE, me.memory)
            yield from self._calls(state, "process", "b", "put_fence", arguments, me._replace(at=START), ended)
        elif me.at == START:
            assert me.sealed is not None
            arguments = (2, 2, me.sealed.sealed)
            yield from self._calls(state, "process", "b", "start", arguments, me._replace(at=DONE), ended)

    def _await_seal(self, state: State) -> Iterator[tuple[str, State]]:
        me, a = state.process, state.a
        fence = a.fence
        assert fence is not None
        if (fence.epoch, fence.owner) == (2, "B"):
            yield "process: sealed", state._replace(process=me._replace(at=HAND_OVER, sealed=fence))
        elif fence.epoch >= 2 or (a.command is None and a.engine is not None):
            yield "process: not sealed", state._replace(process=me._replace(at=ENDED))
        elif a.engine is None:
            yield "process: source has exited", state._replace(process=me._replace(at=COMMAND))
        elif a.command is not None and a.command[:2] != (rules.STOP, ONE):
            yield "process: withdrawn", state._replace(process=me._replace(at=ENDED))

    def _hand_over(self, state: State) -> Iterator[tuple[str, State]]:
        """Get the permission to start the target, as `ownership_records.hand_over` does."""
        me, ended = state.process, state._replace(process=state.process._replace(at=ENDED))
        assert me.sealed is not None
        following = RELAUNCH if me.at == HAND_OVER else FENCE
        copied = tuple(save for save in state.a.saves if save[0] == me.sealed.sealed)
        b = state.b._replace(saves=tuple(dict.fromkeys((*state.b.saves, *copied))))
        if me.permission == "fresh":
            yield "process: goes on", state._replace(b=b, process=me._replace(at=following))
            return
        if me.permission == "old" and self._judge(later_owner, state.a.chain, state.b.chain, me.memory, False):
            yield "process: moved on", ended
            return
        chain = self._judge(known_chain, state.a.chain, state.b.chain, me.memory)
        if chain is None or (chain and chain[-1].epoch > 2):
            yield "process: another owner", ended
            return
        chain = chain or (Link(1, "A", ""),)
        if chain[-1] != Link(2, "B", ONE):
            chain = (*chain, Link(2, "B", ONE))
        done = me._replace(permission="fresh", memory=chain)
        arguments = (chain, 2, "B", ONE, me.number)
        yield from self._calls(state, "process", "a", "allow_start", arguments, done, ended.process)

    def _rollback_moves(self, state: State) -> Iterator[tuple[str, State]]:
        me, process = state.rollback, state.process
        if me is None:
            if self.bounds.rollback and process.at > LOCK:
                began = Return(OWNS, process.sealed is not None, process.at > RELAUNCH, process.memory)
                yield "begin", state._replace(rollback=began)
            return
        if me.at in (BACK, GIVEN_UP):
            return
        given_up, a = me._replace(at=GIVEN_UP), state.a
        if me.at == OWNS:
            lock = rules.held(a)
            owns = lock is not None and lock.migration == ONE
            following = RELEASE if not owns else READ if me.sealed else WITHDRAW
            yield "rollback: looks", state._replace(rollback=me._replace(at=following))
        elif me.at == WITHDRAW:
            if a.engine is None or a.command is None:
                yield "rollback: nothing to withdraw", state._replace(rollback=me._replace(at=READ))
            else:
                done = me._replace(at=ANSWERED)
                yield from self._calls(state, "rollback", "a", "send", (rules.SAVE, ONE, 1, ""), done, given_up)
        elif me.at == ANSWERED:
            if a.engine is None or a.command is None:
                yield "rollback: answered", state._replace(rollback=me._replace(at=READ))
        elif me.at == READ:
            yield from self._read(state)
        elif me.at == CLOSE:
            yield self._close(state)
        elif me.at in (CLOSE_FENCE, REOPEN):
            yield from self._put_back(state)
        elif me.at == RESTART:
            assert me.back is not None
            arguments = (3, me.back.epoch, me.back.sealed)
            yield from self._calls(state, "rollback", "a", "start", arguments, me._replace(at=RELEASE), given_up)
        elif me.at == RELEASE:
            again = me._replace(at=OWNS, back=None)  # what its error says
            yield from self._calls(state, "rollback", "a", "release", (ONE, 2, "B"), me._replace(at=BACK), again)

    def _read(self, state: State) -> Iterator[tuple[str, State]]:
        """Decide by the source's fence, as `source_return` does."""
        me, a = state.rollback, state.a
        assert me is not None
        assert a.fence is not None
        given_up = me._replace(at=GIVEN_UP)
        if self._judge(later_owner, a.chain, state.b.chain, me.memory, True):
            yield "rollback: moved on", state._replace(rollback=given_up)
        elif a.fence.epoch < 2:
            if a.engine is not None:
                yield "rollback: not sealed", state._replace(rollback=me._replace(at=RELEASE))
            else:
                arguments = (3, a.fence.epoch, max(rules.accepted_steps(a)))
                yield from self._calls(state, "rollback", "a", "start", arguments, me._replace(at=RELEASE), given_up)
        else:
            back = self._judge(returned_fence, a.fence, a.saves)
            if back is None:
                yield "rollback: moved on", state._replace(rollback=given_up)
                return
            started = me.relaunching or self._judge(may_have_started, a.lock, me.memory, "r")
            untouched = not started and state.b.fence is None and state.b.engine is None
            following = REOPEN if untouched else CLOSE
            yield "rollback: read", state._replace(rollback=me._replace(at=following, back=back))

    def _close(self, state: State) -> tuple[str, State]:
        me, b = state.rollback, state.b
        assert me is not None
        assert me.back is not None
        if b.fence is not None and b.fence.epoch > 2 and not rules.continues(me.back, b.fence):
            return "rollback: moved on", state._replace(rollback=me._replace(at=GIVEN_UP))
        closed = state._replace(rollback=me._replace(at=CLOSE_FENCE), b=b._replace(engine=None, command=None))
        return "rollback: stops the target", closed

    def _put_back(self, state: State) -> Iterator[tuple[str, State]]:
        me = state.rollback
        assert me is not None
        chain = self._judge(known_chain, state.a.chain, state.b.chain, me.memory)
        if chain is None:
            yield "rollback: two histories", state._replace(rollback=me._replace(at=GIVEN_UP))
            return
        if chain and chain[-1] != Link(3, "A", ONE):
            chain = (*chain, Link(3, "A", ONE))
        closing = me.at == CLOSE_FENCE
        done = me._replace(at=me.at + 1, memory=chain or me.memory, closed=me.closed or closing)
        arguments = (me.back, ONE, chain, None if closing or me.closed else "r")
        again = me._replace(at=OWNS, back=None)  # what its error says
        yield from self._calls(state, "rollback", "b" if closing else "a", "put_fence", arguments, done, again)

    def _other_moves(self, state: State) -> Iterator[tuple[str, State]]:
        """Acquire the lock and stop the source for another migration, to a host C."""
        if state.other == 0:
            yield from self._calls(state, "other", "a", "acquire", (OTHER, 2, "C"), 1, -1)
        elif state.other == 1:
            if state.a.engine is not None:
                yield from self._calls(state, "other", "a", "send", (rules.STOP, OTHER, 2, "C"), 2, -1)
            else:
                step = max(rules.accepted_steps(state.a))
                yield from self._calls(state, "other", "a", "seal", (2, "C", step, OTHER), 2, -1)


def _path(before: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    names: list[str] = []
    while (step := before[state]) is not None:
        state, name = step
        names.append(name)
    return names[::-1]
