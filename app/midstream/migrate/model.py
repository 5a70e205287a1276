"""The values of a migration: what is asked for, what will be done, what happened. No screen, no network."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from midstream.check.check_result import FAIL, PASS, WARN, Check  # noqa: F401  a preflight is made of checks
from midstream_engine import json_shapes, records

# How the run crosses over: it stops, is copied and started; the target waits for it, compiled; the target replays it.
COLD, WARM, LIVE = "cold", "warm", "live"
COMPILE_CACHE = "--trainer.jax_compilation_cache_dir"
MODES = (WARM, COLD, LIVE)

# The phases in their order; `rollback` replaces the rest when one of them fails.
PLAN, PREFLIGHT, PREPARE, CUTOVER, RELAUNCH, CERTIFY, FINISH = (
    "plan",
    "preflight",
    "prepare",
    "cutover",
    "relaunch",
    "certify",
    "finish",
)
PHASES = (PLAN, PREFLIGHT, PREPARE, CUTOVER, RELAUNCH, CERTIFY, FINISH)
ROLLBACK = "rollback"

# States of an event of a phase.
STARTED, PROGRESS, DONE, FAILED = "started", "progress", "done", "failed"

# States of a migration as a whole.
RUNNING, INTERRUPTED, COMPLETED, ROLLED_BACK, ROLLBACK_INCOMPLETE, MOVED_ON = (
    "running",
    "interrupted",
    "completed",
    "rolled back",
    "rollback incomplete",
    "moved on",  # another migration took the run further before this one could be taken back
)
DAMAGED = "damaged"  # neither its plan nor its journal can be read: where it stands is not known
OPEN_STATES = frozenset({RUNNING, INTERRUPTED, ROLLBACK_INCOMPLETE, DAMAGED})

NO_ROUTE = "none: "  # what a plan's route begins with where no way is open
UNKNOWN = "?"  # a name that no readable file contains


def _fields(cls: type[Any], value: Any, where: str) -> dict[str, Any]:
    """The fields of ``cls`` in a JSON value. RecordError naming ``where`` and the field of another type.

    Fields that a newer version added are left out; lists become tuples where the field is one."""
    try:
        json_shapes.check(cls, value)
    except json_shapes.ShapeError as error:
        raise records.RecordError(f"{where or cls.__name__}: {error}") from None
    known = {each.name: value[each.name] for each in dataclasses.fields(cls) if each.name in value}
    return {name: tuple(item) if isinstance(item, list) else item for name, item in known.items()}


@dataclass(frozen=True)
class Request:
    """What a person asks for: `midstream --migrate RUN --to TARGET`."""

    run_id: str
    target: str
    mode: str = WARM
    checkpoint: str = "now"  # "now", "latest", or a step number
    source: str = ""  # host of the copy to move; empty: the copy with the highest fence epoch
    source_lost: bool = False
    certify_steps: int = 16
    healthy_steps: int = 100
    overrides: tuple[str, ...] = ()  # engine flags, as they stand


@dataclass(frozen=True)
class Change:
    """One number of the run, before and after. ``note`` says why it changes, or that it does not matter."""

    name: str
    before: str
    after: str
    note: str = ""

    @property
    def changed(self) -> bool:
        return self.before != self.after


@dataclass(frozen=True)
class Cost:
    """What a move costs, in the currency of the fleet file's prices."""

    source_per_hour: float
    target_per_hour: float
    move: float  # the target while it is made ready, and both while neither trains
    step_before: float
    step_after: float | None  # None: nobody has measured the target's pace yet
    tokens: int  # of a step; 0 where that is not known
    steps_left: int
    pays_after_steps: float | None  # None: never, or not known
    pays_after_hours: float | None  # of training on the target
    pays_below_seconds: float | None  # a step on the target that takes less is cheaper than one on the source


@dataclass(frozen=True)
class Plan:
    """A migration as a value: printing it is the dry run, executing it is the migration."""

    migration: str  # id: mig-<date>-<run>-<random>
    run_id: str
    mode: str
    source: str  # host name
    source_attempt: int
    source_state: str
    source_step: int
    target: str  # target name
    target_host: str
    source_epoch: int
    epoch: int  # what the target will run under
    checkpoint: str  # "now", or the name of a complete checkpoint
    checkpoint_step: int | None  # None for "now"
    source_devices: int
    target_devices: int
    train_batch_size: int
    per_device_parallelism: int
    accumulation: int
    overrides: tuple[str, ...]  # engine flags of the target's attempt
    changes: tuple[Change, ...]
    route: str  # as probed
    checkpoint_bytes: int
    data_digests: tuple[str, ...]  # token caches that the run reads from its host; empty where they lie in a bucket
    data_bytes: int  # to be copied; 0 where the target has the data
    steps_lost: int
    predicted_seconds: Mapping[str, float]  # by ledger entry
    cost_per_hour: tuple[float | None, float | None] = (None, None)  # source, target
    warnings: tuple[str, ...] = ()
    source_lost: bool = False
    certify_steps: int = 16
    healthy_steps: int = 100
    fleet_file: str = ""
    created: float = 0.0
    consent: tuple[str, ...] = ()  # what a person has to agree to before it begins
    source_target: str = ""  # whom the fence names as the run's holder
    source_hosts: tuple[str, ...] = ()  # all that carry the run out, that of process 0 first; empty: source alone
    target_hosts: tuple[str, ...] = ()  # all that will; empty: target_host alone
    cost: Cost | None = None  # None where a price is not known
    source_store: str = ""  # gs://bucket/prefix with the run's checkpoints; empty: in its own directory
    target_store: str = ""  # the same, from the move on
    data_location: str = ""  # the bucket or server with the token caches, where the hosts have none of their own

    @property
    def stands_by(self) -> bool:
        """Whether an attempt stands by on the target before the source is sealed."""
        return self.mode != COLD

    @property
    def target_flags(self) -> tuple[str, ...]:
        """Engine flags of the target's attempts. Compiled programs are run: the target reads them from a place of its
        own, unless the person who moves the run names one."""
        flags = (COMPILE_CACHE, "null")
        if self.source_store or self.target_store:
            flags = (*flags, "--trainer.checkpointer.base_path", self.target_store or "null")
        return (*flags, *self.overrides)

    @property
    def predicted_downtime(self) -> float:
        return sum(self.predicted_seconds.values())

    def command(self) -> str:
        """The command line that does the same."""
        import shlex

        words = ["midstream"]
        if self.fleet_file:
            words += ["--fleet", self.fleet_file]
        words += ["--migrate", self.run_id, "--to", self.target, "--mode", self.mode]
        if self.checkpoint != "now":
            words += ["--checkpoint", str(self.checkpoint_step)]
        if self.source_lost:
            words.append("--source-lost")
        words += ["--certify-steps", str(self.certify_steps), "--healthy-steps", str(self.healthy_steps)]
        if self.consent:
            words.append("--yes")
        if self.overrides:
            words += ["--", *self.overrides]
        return shlex.join(words)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any, where: str = "") -> Self:
        """RecordError naming ``where`` and the field that is missing or of another type."""
        fixed = _fields(cls, value, where)
        if fixed["mode"] not in MODES:
            raise records.RecordError(
                f"{where or cls.__name__}: mode: {fixed['mode']!r} is not one of {', '.join(MODES)}"
            )
        fixed["changes"] = tuple(Change(**_fields(Change, change, where)) for change in value["changes"])
        fixed["cost"] = Cost(**_fields(Cost, value["cost"], where)) if value.get("cost") else None
        return cls(**fixed)

    @classmethod
    def unknown(cls, migration: str) -> Self:
        """In the place of a plan that cannot be read: the migration's id contains the run's."""
        parts = migration.split("-")
        run_id = "-".join(parts[2:-1]) or UNKNOWN
        return cls(
            migration=migration, run_id=run_id, mode=COLD, source=UNKNOWN, source_attempt=0, source_state="",
            source_step=0, target=UNKNOWN, target_host=UNKNOWN, source_epoch=0, epoch=0, checkpoint="now",
            checkpoint_step=None, source_devices=0, target_devices=0, train_batch_size=0, per_device_parallelism=0,
            accumulation=0, overrides=(), changes=(), route="", checkpoint_bytes=0, data_digests=(), data_bytes=0,
            steps_lost=0, predicted_seconds={},
        )  # fmt: skip


@dataclass(frozen=True)
class Event:
    """One line of the journal, and of ``--json``.

    ``event``: ``phase`` (a phase began, went on, ended), ``check`` (a preflight line), ``command`` (what was run
    where: the command log), ``note`` (one line for a person), ``result`` (the end).
    """

    event: str
    time: float
    phase: str = ""
    state: str = ""
    message: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        value = {key: item for key, item in asdict(self).items() if item not in ("", {})}
        detail = value.pop("detail", {})
        return {**value, **{key: item for key, item in detail.items() if key not in value}}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """ShapeError where a field is missing or of another type."""
        json_shapes.check(cls, value)
        names = ("event", "time", "phase", "state", "message")
        return cls(
            **{name: value[name] for name in names if name in value},
            detail={key: item for key, item in value.items() if key not in names},
        )

    def line(self) -> str:
        return json.dumps(self.to_json())


# What the downtime is made of, in the order in which it passes.
DOWNTIME_PHASES = ("quiesce", "save", "copy", "verify", "provision", "install", "compile", "restore", "first_step")


@dataclass(frozen=True)
class DowntimeReport:
    """Downtime: from the end of the last step on the source to the end of the first on the target, in seconds."""

    predicted: Mapping[str, float]
    measured: Mapping[str, float]
    last_step_ended: float | None = None  # UTC seconds, source's clock corrected for skew
    first_step_ended: float | None = None  # UTC seconds, target's clock corrected for skew

    @property
    def total(self) -> float | None:
        if self.last_step_ended is None or self.first_step_ended is None:
            return None
        return self.first_step_ended - self.last_step_ended

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "total": self.total}

    @classmethod
    def from_json(cls, value: Any, where: str = "") -> Self:
        """RecordError naming ``where`` and the field that is missing or of another type."""
        return cls(**_fields(cls, value, where))


VERIFIED, CLAIM_FAILED, NOT_CHECKED = "verified", "failed", "not checked"


@dataclass(frozen=True)
class Claim:
    """One thing that the certificate says, and the evidence for it."""

    name: str  # "state", "data", "reference losses", "continuity"
    verdict: str  # VERIFIED, CLAIM_FAILED or NOT_CHECKED
    statement: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Certificate:
    """The proof that the run continued."""

    migration: str
    run_id: str
    source: str
    target: str
    step: int  # where the run crossed over
    checkpoint: str
    root_digest: str
    epoch: int
    claims: tuple[Claim, ...]
    issued: float

    @property
    def valid(self) -> bool:
        """No claim is refuted, and state, data and witness are proven."""
        return all(claim.verdict == VERIFIED for claim in self.claims if claim.name != "continuity") and all(
            claim.verdict != CLAIM_FAILED for claim in self.claims
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "valid": self.valid}

    @classmethod
    def from_json(cls, value: Any, where: str = "") -> Self:
        """RecordError naming ``where`` and the field that is missing or of another type."""
        fixed = _fields(cls, value, where)
        fixed["claims"] = tuple(Claim(**_fields(Claim, claim, where)) for claim in value["claims"])
        return cls(**fixed)


@dataclass(frozen=True)
class MigrationView:
    """A migration as its directory tells it. Screens and flags read this; they hold nothing of their own."""

    migration: str
    plan: Plan
    state: str  # RUNNING, INTERRUPTED, COMPLETED, ROLLED_BACK, ROLLBACK_INCOMPLETE, MOVED_ON or DAMAGED
    phase: str  # the newest phase that was begun
    events: tuple[Event, ...]
    downtime: DowntimeReport | None = None
    certificate: Certificate | None = None
    finished: bool = False  # the source is retired: no rollback any more
    error: str = ""
    damage: tuple[str, ...] = ()  # what is wrong with its files, one line each

    @property
    def open(self) -> bool:
        return self.state in OPEN_STATES

    @property
    def sealed_step(self) -> int | None:
        """Where the run crosses over; None before the seal."""
        if self.certificate is not None:
            return self.certificate.step
        return next((int(event.detail["sealed"]["step"]) for event in self.events if "sealed" in event.detail), None)

    @property
    def predicted_seconds(self) -> Mapping[str, float]:
        """Seconds of each ledger entry: the newest prediction that was made before the run stood still."""
        if self.downtime is not None:
            return self.downtime.predicted
        newest = next(
            (event.detail["predicted"] for event in reversed(self.events) if "predicted" in event.detail), None
        )
        return newest or self.plan.predicted_seconds

    def steps_given_up(self, target_step: int | None) -> int:
        """Updates that a rollback gives up: what the target, which is at ``target_step``, did past the seal."""
        sealed = self.sealed_step
        return 0 if sealed is None or target_step is None else max(0, target_step - sealed)
