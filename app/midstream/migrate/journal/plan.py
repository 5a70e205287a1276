"""A migration as a value: printing is the dry run, executing is the migration."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Self

from midstream.migrate.journal.cost import Cost
from midstream.migrate.journal.json_values import fields_of
from midstream.migrate.modes.registry import COLD, MODES
from midstream_core import records
from midstream_core.json_shapes import Long
from midstream_core.json_types import object_or_empty
from midstream_host.driver.run_file import RunFile

COMPILE_CACHE = "--trainer.jax_compilation_cache_dir"
FORMAT = 2  # of plan.json, and of the plan in journal.jsonl and `--dry-run --json`
NO_ROUTE = "none: "  # prefix of a plan's route where there is none
MAX_RUN_TEXT = 1 << 20  # characters of another trainer's run file
UNKNOWN = "?"  # a name that no readable file contains


# Names of changes that the certificate's tolerance follows from.
PRECISION, MATMUL_PRECISION = "precision", "matmul precision"


@dataclass(frozen=True)
class Change:
    """One number of the run, before and after.

    ``note`` says why it changes, or that it does not matter.
    """

    name: str
    before: str
    after: str
    note: str = ""

    @property
    def changed(self) -> bool:
        return self.before != self.after

    @property
    def label(self) -> str:
        """The name in the column of a plan's rows, which is ten cells wide."""
        return "matmul" if self.name == MATMUL_PRECISION else self.name


@dataclass(frozen=True)
class Identity:
    """Which run is migrated, from which epoch to which, and how."""

    migration: str  # id: <date>-<time>-<run>-<random>
    run_id: str
    mode: str
    source_epoch: int
    epoch: int  # of the target's attempts
    checkpoint: str = "now"  # "now", or the name of a complete checkpoint
    checkpoint_step: int | None = None  # None for "now"
    fleet_file: str = ""
    created: float = 0.0  # UTC seconds
    # HOST:PATH of another trainer's checkpoint that is not imported yet, and the flags of its import
    imports: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shape:
    """Devices and batch on both sides, and what changes of the run."""

    source_devices: int
    target_devices: int
    train_batch_size: int
    per_device_parallelism: int
    accumulation: int
    num_train_steps: int = 0  # of the run on the target; 0: not known
    overrides: tuple[str, ...] = ()  # engine flags of the target's attempt
    changes: tuple[Change, ...] = ()
    memory: str = ""  # what a device of the target needs, and has; empty: not known


@dataclass(frozen=True)
class Route:
    """Both ends: hosts, checkpoint stores, data, and the route between them."""

    source: str  # host
    source_state: str
    source_step: int
    target: str  # name of the target
    target_host: str
    probed: str = ""  # the route of the checkpoint's bytes, as a probe found it
    source_target: str = ""  # the fence's owner of the run
    source_hosts: tuple[str, ...] = ()  # of the run's processes, that of process 0 first; empty: source alone
    target_hosts: tuple[str, ...] = ()  # the same of the target; empty: target_host alone
    source_store: str = ""  # URL of the prefix with the run's checkpoints; empty: in its own directory
    target_store: str = ""  # the same after the migration
    data_digests: tuple[str, ...] = ()  # token caches on the run's host; empty where they are in a bucket
    data_location: str = ""  # bucket or server with the token caches, where the hosts have none

    @property
    def shared_store(self) -> bool:
        """Whether both ends read one bucket, so that no checkpoint is copied."""
        return bool(self.source_store) and self.source_store == self.target_store


@dataclass(frozen=True)
class Estimate:
    """Bytes, seconds and cost that are expected."""

    checkpoint_bytes: int = 0
    data_bytes: int = 0  # to be copied to the host that lacks most; 0 where each host of the target has the data
    steps_lost: int = 0
    predicted_seconds: Mapping[str, float] = field(default_factory=dict[str, float])  # by phase of the downtime
    cost_per_hour: tuple[float | None, float | None] = (None, None)  # source, target
    cost: Cost | None = None  # None where a price is not known
    unknown: tuple[str, ...] = ()  # phases of the downtime that cannot be predicted; they are not in predicted_seconds
    duration: Mapping[str, float | None] = field(default_factory=dict[str, float | None])  # by stage; None: unknown
    assumptions: tuple[str, ...] = ()  # rates that no migration has measured yet, one line each
    environment_ready: bool | None = None  # of the engine on the target; None: not known
    install_bytes: int = 0  # of packages that the target downloads; 0: none, or not known

    @property
    def predicted_downtime(self) -> float | None:
        """Seconds of the downtime; None where a part of it is unknown."""
        return None if self.unknown else sum(self.predicted_seconds.values())


@dataclass(frozen=True)
class Policy:
    """The user's request, and what it needs agreement to."""

    source_lost: bool = False
    certify_steps: int = 16
    healthy_steps: int = 100
    consent: tuple[str, ...] = ()  # to be agreed to before the migration starts
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainerPlan:
    """Part of a plan for a run of another trainer.

    Attributes:
        name: The trainer.
        run_text: The run file that the target's attempts have: its commands, and the digest of its files.
        source_flags: The driver's flags on the source, for a rollback.
        target_flags: The same on the target.
        saves_on_signal: It saves when it is stopped; else the next periodic checkpoint is waited for.
        wait: Seconds for which that is waited for at most.
        same_world: As many processes as before: losses of the same steps are compared bit by bit.
        losses_may_differ: Random state or order of the data are not stored, which the user has to agree to.
        advice: What would make further claims checkable, one line each.
        batch_may_differ: The target has other devices, and the user has to agree that the global batch may change.
        one_node: Both ends are one host, so that the batches of all processes are on it.
    """

    name: str
    run_text: Annotated[str, Long(MAX_RUN_TEXT)]
    source_flags: tuple[str, ...]
    target_flags: tuple[str, ...]
    saves_on_signal: bool = False
    wait: float = 0.0
    same_world: bool = True
    losses_may_differ: bool = False
    advice: tuple[str, ...] = ()
    batch_may_differ: bool = False
    one_node: bool = False

    @property
    def run_file(self) -> RunFile:
        """The decoded run file. RecordError if it has another form."""
        return RunFile.from_json(records.parse_json(self.run_text, "plan: run_text"), "plan: run_text")


@dataclass(frozen=True)
class Plan:
    """A migration as a value: printing is the dry run, executing is the migration."""

    identity: Identity
    shape: Shape
    route: Route
    estimate: Estimate = Estimate()
    policy: Policy = Policy()
    trainer: TrainerPlan | None = None  # None: a run of midstream's own engine

    @property
    def migration(self) -> str:
        return self.identity.migration

    @property
    def run_id(self) -> str:
        return self.identity.run_id

    @property
    def mode(self) -> str:
        return self.identity.mode

    @property
    def epoch(self) -> int:
        return self.identity.epoch

    @property
    def source_epoch(self) -> int:
        return self.identity.source_epoch

    @property
    def checkpoint(self) -> str:
        return self.identity.checkpoint

    @property
    def source(self) -> str:
        return self.route.source

    @property
    def target(self) -> str:
        return self.route.target

    @property
    def target_host(self) -> str:
        return self.route.target_host

    @property
    def has_standby(self) -> bool:
        """Whether a standby is started on the target before the source is sealed."""
        return MODES[self.mode].has_standby

    @property
    def target_flags(self) -> tuple[str, ...]:
        """Engine flags of the target's attempts.

        The compile cache is the target's own unless the user names one: compiled programs are executed.
        """
        if self.trainer is not None:
            return self.trainer.target_flags
        flags = (COMPILE_CACHE, "null")
        if self.route.source_store or self.route.target_store:
            flags = (*flags, "--trainer.checkpointer.base_path", self.route.target_store or "null")
        return (*flags, *self.shape.overrides)

    @property
    def source_flags(self) -> tuple[str, ...]:
        """Flags of the source's attempts after a rollback."""
        return self.trainer.source_flags if self.trainer is not None else ()

    def command(self) -> str:
        """Return the command line that starts the same migration."""
        identity, policy = self.identity, self.policy
        words = ["--migrate", *(identity.imports or (identity.run_id,)), "--to", self.target, "--mode", identity.mode]
        if identity.checkpoint != "now" and not identity.imports:
            words += ["--checkpoint", str(identity.checkpoint_step)]
        if policy.source_lost:
            words.append("--source-lost")
        words += ["--certify-steps", str(policy.certify_steps), "--healthy-steps", str(policy.healthy_steps)]
        if policy.consent:
            words.append("--yes")
        if self.shape.overrides:
            words += ["--", *self.shape.overrides]
        return self.own_command(*words)

    def own_command(self, *words: str) -> str:
        """Return a command line of midstream with the fleet file of this plan."""
        fleet = ("--fleet", self.identity.fleet_file) if self.identity.fleet_file else ()
        return shlex.join(["midstream", *fleet, *words])

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, value: Any, where: str = "") -> Self:
        """Read a plan.

        Raises:
            RecordError: its format is another one, or a field is missing or has another type; the message names
                ``where`` and the field.
        """
        where = where or cls.__name__
        record = object_or_empty(value)
        if "identity" in record and record.get("format") != FORMAT:
            raise records.RecordError(
                f"{where}: format {record.get('format')!r} is another midstream's; this one reads format {FORMAT}"
            )
        parts = fields_of(cls, value, where)
        shape, estimate = fields_of(Shape, parts["shape"], where), fields_of(Estimate, parts.get("estimate", {}), where)
        shape["changes"] = tuple(Change(**fields_of(Change, change, where)) for change in shape.get("changes", ()))
        if estimate.get("cost") is not None:
            estimate["cost"] = Cost(**fields_of(Cost, estimate["cost"], where))
        plan = cls(
            identity=Identity(**fields_of(Identity, parts["identity"], where)),
            shape=Shape(**shape),
            route=Route(**fields_of(Route, parts["route"], where)),
            estimate=Estimate(**estimate),
            policy=Policy(**fields_of(Policy, parts.get("policy", {}), where)),
            trainer=TrainerPlan(**fields_of(TrainerPlan, parts["trainer"], where)) if parts.get("trainer") else None,
        )
        if plan.mode not in MODES:
            raise records.RecordError(f"{where}: mode: {plan.mode!r} is not one of {', '.join(MODES)}")
        return plan

    @classmethod
    def unknown(cls, migration: str) -> Self:
        """Stand in for a plan that cannot be read: the migration's id contains the run's."""
        run_id = "-".join(migration.split("-")[2:-1]) or UNKNOWN
        return cls(
            identity=Identity(migration, run_id, COLD, source_epoch=0, epoch=0),
            shape=Shape(0, 0, 0, 0, 0),
            route=Route(UNKNOWN, "", 0, UNKNOWN, UNKNOWN),
        )
