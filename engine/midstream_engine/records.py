"""What lies on disk: the run directory, the orders, the fence and the checkpoint's manifest.

Everything that two programs have to agree on is written here once. The engine imports it, the operator's
app imports it, and it is piped as source to hosts where nothing is installed; therefore it uses the
standard library alone and runs on Python 3.8.

Paths are POSIX strings, because the reader of a path is often another machine than the one it lies on.
Times are UTC seconds since the epoch.  Steps: update ``k`` (from 0) consumes batch ``k`` and logs
``global_step: k``; checkpoint ``step-N`` is the state after ``N`` updates, so the next line is ``N``.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import errno
import functools
import hashlib
import json
import math
import os
import posixpath
import re
import stat
import time
from typing import (
    Any,
    BinaryIO,
    ClassVar,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
    Union,
)

from midstream_engine import json_shapes

FORMAT = "midstream-checkpoint"
FORMAT_VERSION = 1

MANIFEST = "manifest.json"
TRAIN = "train.json"
PACKED = "small.safetensors"
# Of a url or data.tokenizer: the directory, called by its digest, of what came along with a run from elsewhere.
IMPORTED = "imported:"

# ---------------------------------------------------------------------------------------- states of an attempt

STARTING = "starting"
COMPILING = "compiling"
RESTORING = "restoring"
WAITING = "waiting"
REPLAYING = "replaying"
TRAINING = "training"
SAVING = "saving"
ON_STANDBY = "standby"
STOPPING = "stopping"
STOPPED = "stopped"
FINISHED = "finished"
FAILED = "failed"

STATES = (
    STARTING, COMPILING, RESTORING, WAITING, REPLAYING, TRAINING,
    SAVING, ON_STANDBY, STOPPING, STOPPED, FINISHED, FAILED,
)  # fmt: skip
ENDED = frozenset({STOPPED, FINISHED, FAILED})

# Exit codes of ``python -m midstream_engine.train``.
EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_CONFIG = 2
EXIT_FENCED = 7

# Actions of ``command.json``.
SAVE = "save"
STOP = "stop"
RESTORE = "restore"
PROMOTE = "promote"
STANDBY = "standby"
REPLAY = "replay"
ACTIONS = (SAVE, STOP, RESTORE, PROMOTE, STANDBY, REPLAY)
STARTS = frozenset({RESTORE, STANDBY, REPLAY})  # what an attempt is started with


LARGEST_FILE = 1 << 26  # bytes of a JSON file that is read: a manifest of a hundred thousand objects has about 20 MB

# What strings in records become parts of paths: no other characters than these.
CHECKPOINT_NAME = json_shapes.Form("a checkpoint's name", r"step-(?:0|[1-9][0-9]{0,17})-a[0-9]{3,18}")
RUN_ID = json_shapes.Form("a run id", r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
RUN_ID_OR_EMPTY = json_shapes.Form("a run id", r"(?:[A-Za-z0-9][A-Za-z0-9._-]{0,127})?")
DTYPE = json_shapes.Form("a type of elements", r"bool|u?int(?:8|16|32|64)|b?float16|float(?:32|64)")
# What reaches a person's eyes as a name: no control characters, nor those that turn the writing direction.
_UNSEEN = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
NAME = json_shapes.Form("a name without control characters", "[^" + _UNSEEN + "]{0,255}")
DIGEST = json_shapes.Form("a digest", r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
DIGEST_OR_EMPTY = json_shapes.Form("a digest", r"(?:[A-Za-z0-9][A-Za-z0-9_-]{0,127})?")


class RecordError(ValueError):
    """A record is missing, torn or of another shape; the message names the file and field."""


class Damaged(RecordError):
    """A file is there and cannot be read: torn, of another shape, or no regular file. It is never taken for absent."""


# ------------------------------------------------------------------------------------------------------- paths


@dataclasses.dataclass(frozen=True)
class RunPaths:
    """Where the parts of one run lie under a host's root."""

    root: str
    run_id: str
    store: str = ""  # the gs:// prefix that the checkpoints lie under; empty: the root, as all the rest does

    @property
    def dir(self) -> str:
        return posixpath.join(self.root, "runs", self.run_id)

    def _in(self, *parts: str) -> str:
        return posixpath.join(self.dir, *parts)

    @property
    def config(self) -> str:
        return self._in("run.yaml")

    @property
    def lineage(self) -> str:
        return self._in("lineage.json")

    @property
    def fence(self) -> str:
        return self._in("fence.json")

    @property
    def migration_lock(self) -> str:
        return self._in("migration_lock.json")

    @property
    def lock(self) -> str:
        """Held (flock) around each commit of a checkpoint and each change of fence or lineage."""
        return self._in(".lock")

    @property
    def pins(self) -> str:
        return self._in("pins")

    @property
    def attempts(self) -> str:
        return self._in("attempts")

    @property
    def checkpoints(self) -> str:
        return posixpath.join(self.store, "runs", self.run_id, "checkpoints") if self.store else self._in("checkpoints")

    def checkpoint(self, name: str) -> str:
        return posixpath.join(self.checkpoints, name)

    @property
    def store_file(self) -> str:
        """Says where the checkpoints lie, where that is not here: see :class:`Store`."""
        return self._in("store.json")

    def attempt(self, number: int) -> "AttemptPaths":
        return AttemptPaths(self._in("attempts", attempt_name(number)))


@dataclasses.dataclass(frozen=True)
class AttemptPaths:
    """Where the parts of one attempt lie."""

    dir: str

    def status(self, process: int = 0) -> str:
        return posixpath.join(self.dir, f"status-{process}.json")

    def log(self, process: int = 0) -> str:
        return posixpath.join(self.dir, f"log-{process}.txt")

    def launched(self, process: int = 0) -> str:
        """What was started for the process, before it has written a status."""
        return posixpath.join(self.dir, "launch.json" if process == 0 else f"launch-{process}.json")

    def exit(self, process: int = 0) -> str:
        """How the process ended: see :class:`ProcessExit`."""
        return posixpath.join(self.dir, f"exit-{process}.json")

    @property
    def metrics(self) -> str:
        return posixpath.join(self.dir, "metrics.jsonl")

    @property
    def command_file(self) -> str:
        return posixpath.join(self.dir, "command.json")

    @property
    def restore(self) -> str:
        """The engine's evidence of what it restored: see :class:`Restore`."""
        return posixpath.join(self.dir, "restore.json")

    @property
    def replay(self) -> str:
        """Rows of what was replayed: like metrics.jsonl, and of no account unless the attempt is promoted."""
        return posixpath.join(self.dir, "replay.jsonl")

    @property
    def lease(self) -> str:
        """Written anew while somebody still wants an attempt that stands by."""
        return posixpath.join(self.dir, "lease")

    @property
    def parameter_drift(self) -> str:
        """The distance between the replayed state and the sealed one: see :class:`Crossing`."""
        return posixpath.join(self.dir, "parameter_drift.json")


def attempt_name(number: int) -> str:
    """``3`` -> ``"003"``."""
    return f"{number:03d}"


_CHECKPOINT = re.compile(r"step-([0-9]{1,18})-a([0-9]{1,18})")


def checkpoint_name(step: int, attempt: int) -> str:
    """``(1200, 3)`` -> ``"step-1200-a003"``."""
    return f"step-{step}-a{attempt:03d}"


def parse_checkpoint_name(name: str) -> Optional[Tuple[int, int]]:
    """``"step-1200-a003"`` -> ``(1200, 3)``; None for any other name."""
    match = _CHECKPOINT.fullmatch(name)
    return (int(match.group(1)), int(match.group(2))) if match else None


def check_run_id(run_id: str) -> str:
    """The id itself where it may name a directory, else RecordError: letters, digits, ``.``, ``_`` and ``-``."""
    if not re.fullmatch(RUN_ID.pattern, run_id):
        raise RecordError(
            f"run id {run_id!r}: use 1 to 128 letters, digits, '.', '_' or '-', the first a letter or digit"
        )
    return run_id


# ---------------------------------------------------------------------------------------------------- JSON I/O


def canonical_json(value: Any) -> bytes:
    """One spelling for one value: sorted keys, no spaces, UTF-8, no NaN. What digests are computed over."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def write_json(path: str, value: Any, *, durable: bool = True) -> None:
    """Replace ``path`` atomically. ``durable`` also waits until the new name is on the disk."""
    write_bytes(path, json.dumps(value, indent=1, allow_nan=False).encode() + b"\n", durable=durable)


def write_bytes(path: str, data: bytes, *, durable: bool = True, mode: int = 0o644) -> None:
    """Replace ``path`` atomically with ``data``."""
    temporary = f"{path}.tmp-{os.getpid()}-{time.monotonic_ns()}"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    if durable:
        sync_directory(os.path.dirname(path) or ".")


def append(descriptor: int, line: bytes) -> None:
    """Append ``line`` to a file that nobody else writes. OSError where there is no room; nothing of it stays then."""
    whole = os.fstat(descriptor).st_size
    left = memoryview(line)
    try:
        while left:  # a disk that fills up takes a part of it, and says so at the next part alone
            left = left[os.write(descriptor, left) :]
    except OSError:
        os.ftruncate(descriptor, whole)
        raise


def sync_directory(path: str) -> None:
    """Wait until the names in a directory are on the disk (where the file system can be asked)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EROFS, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def open_regular(path: str) -> BinaryIO:
    """A regular file, to be read. FileNotFoundError where it is absent; Damaged where it is a directory, a FIFO or a
    device, none of which is waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise Damaged(f"{path}: not a regular file")


def read_bytes(path: str, limit: int) -> bytes:
    """The content of a regular file. FileNotFoundError where it is absent; Damaged where it is something else, or
    has more than ``limit`` bytes."""
    with open_regular(path) as file:
        pieces: List[bytes] = []
        left = limit + 1
        while left > 0:
            piece = file.read(left)
            if not piece:
                break
            pieces.append(piece)
            left -= len(piece)
    if left <= 0:
        raise Damaged(f"{path}: larger than {limit} bytes")
    return b"".join(pieces)


def parse_json(data: Union[bytes, str], where: str) -> Any:
    """The JSON value in ``data``. RecordError naming ``where`` for anything else, however deeply it is nested."""
    try:
        return json.loads(data)
    except ValueError as error:
        raise RecordError(f"{where}: not JSON ({error})" if data else f"{where}: it is empty") from error
    except (RecursionError, MemoryError):
        raise RecordError(f"{where}: not JSON that can be read (nested too deeply, or too large)") from None


def read_json(path: str, limit: int = LARGEST_FILE) -> Any:
    """The value in ``path``. FileNotFoundError where it is absent; Damaged where it is torn, no file, or larger than
    ``limit`` bytes."""
    try:
        return parse_json(read_bytes(path, limit), path)
    except RecordError as error:
        raise Damaged(str(error)) from None


def read_json_or_none(path: str, limit: int = LARGEST_FILE) -> Any:
    """The value in ``path``, or None where there is no such file."""
    try:
        return read_json(path, limit)
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold an exclusive advisory lock on ``path``, which is created where it is missing."""
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


Record = TypeVar("Record", bound="_Record")


@dataclasses.dataclass(frozen=True)
class _Record:
    """A frozen dataclass that knows its JSON form. Fields that a newer version added are ignored on reading."""

    LIMIT: ClassVar[int] = 1 << 20  # bytes of its file

    def to_json(self) -> Dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls: Type[Record], value: Any, where: str = "") -> Record:
        """Raises RecordError naming ``where`` and the field whose value is missing or of another type."""
        try:
            json_shapes.check(cls, value)
        except json_shapes.ShapeError as error:
            raise RecordError(f"{where or cls.__name__}: {error}") from None
        return cls._of(value)

    @classmethod
    def _of(cls: Type[Record], value: Mapping[str, Any]) -> Record:
        """From a value that was checked already, as part of a larger one."""
        return cls(**{key: value[key] for key in _names(cls) if key in value})

    @classmethod
    def read(cls: Type[Record], path: str) -> Record:
        """FileNotFoundError where it is absent, Damaged where it cannot be read."""
        value = read_json(path, cls.LIMIT)
        try:
            return cls.from_json(value, path)
        except RecordError as error:
            raise Damaged(str(error)) from None

    @classmethod
    def read_or_none(cls: Type[Record], path: str) -> Optional[Record]:
        try:
            return cls.read(path)
        except FileNotFoundError:
            return None

    def write(self, path: str, *, durable: bool = True) -> None:
        write_json(path, self.to_json(), durable=durable)


@functools.lru_cache(maxsize=None)
def _names(kind: Type[Any]) -> Tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


# --------------------------------------------------------------------------------------------- process identity


@dataclasses.dataclass(frozen=True)
class ProcessIdentity(_Record):
    """A process of this boot: a pid alone is reused, a pid with its start time is not."""

    boot_id: str
    pid: int
    start_ticks: int


def _start_ticks(pid: int) -> Optional[int]:
    """Field 22 of /proc/PID/stat: start time in clock ticks since boot. None where there is no such process
    or where it is only a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
        return file.read().strip()


def this_process() -> ProcessIdentity:
    pid = os.getpid()
    ticks = _start_ticks(pid)
    assert ticks is not None
    return ProcessIdentity(boot_id(), pid, ticks)


def identify(pid: int) -> Optional[ProcessIdentity]:
    """The identity of a running process of this machine, None where there is none."""
    ticks = _start_ticks(pid)
    return None if ticks is None else ProcessIdentity(boot_id(), pid, ticks)


def is_running(process: ProcessIdentity) -> bool:
    """Whether this very process still runs on this machine."""
    return process.boot_id == boot_id() and _start_ticks(process.pid) == process.start_ticks


# -------------------------------------------------------------------------------------------------- run records


@dataclasses.dataclass(frozen=True)
class Device(_Record):
    """An accelerator, as the engine that computes on it describes it."""

    kind: str = ""
    platform: str = ""
    memory_bytes: Optional[int] = None


@dataclasses.dataclass(frozen=True)
class Status(_Record):
    """``status-<p>.json``: what one process of an attempt is doing. ``heartbeat`` is rewritten every few seconds."""

    state: str
    step: int  # updates done: the state the process holds is step-<step>
    process: int
    boot_id: str
    pid: int
    start_ticks: int
    heartbeat: float
    run_id: str = dataclasses.field(default="", metadata={"form": RUN_ID_OR_EMPTY})
    attempt: int = 0
    epoch: int = 1  # 0 while it waits or replays: it has no part in the run yet
    processes: int = 1
    num_train_steps: int = 0
    devices: List[Dict[str, Any]] = dataclasses.field(default_factory=list, metadata={"items": Device})
    versions: Dict[str, str] = dataclasses.field(default_factory=dict)
    checkpoint: Optional[str] = dataclasses.field(
        default=None, metadata={"form": CHECKPOINT_NAME}
    )  # newest complete checkpoint that this attempt wrote or restored
    root_digest: Optional[str] = None  # of that checkpoint
    data_digest: str = dataclasses.field(
        default="", metadata={"form": DIGEST_OR_EMPTY}
    )  # of the token cache that it trains on; empty while that is not known yet
    # Of every token cache that it reads from its host's data directory: the one it trains on, then its validation sets.
    data_digests: List[str] = dataclasses.field(default_factory=list, metadata={"form": DIGEST})
    acknowledged: int = 0  # serial of the last order that was carried out
    rejected: int = 0  # serial of the last order that could not be: training goes on, ``message`` says why
    message: str = ""  # one line: why it failed, what it waits for
    rehearsed_seconds: float = 0.0  # of one update in the rehearsal; 0 where none was rehearsed
    # When the process last got on: a step done, a save begun or ended, a state entered. ``heartbeat`` goes on in a
    # thread of its own where the training loop is stuck in a collective; this does not, and so tells a stuck process
    # from a slow one. By the process's own clock, like ``heartbeat``: compare the two, not with another machine's time.
    progress: float = 0.0
    host: str = ""  # the machine that it runs on, by the launcher's name ($MIDSTREAM_HOST) or its own

    @property
    def identity(self) -> ProcessIdentity:
        return ProcessIdentity(self.boot_id, self.pid, self.start_ticks)


@dataclasses.dataclass(frozen=True)
class ProcessExit(_Record):
    """``exit-<p>.json``: how a process of an attempt ended, written by what stood beside it on its host. ``state``,
    ``step`` and ``heartbeat`` are those of its last status."""

    process: int
    code: Optional[int]  # None where a signal ended it
    time: float
    signal: str = ""  # "SIGKILL"
    stalled: bool = False  # it lived, and was ended because it made no step any more
    state: str = ""
    step: int = 0
    heartbeat: float = 0.0
    message: str = ""  # one line: why

    @property
    def failed(self) -> bool:
        """Whether it ended otherwise than it should. What took it after its last word, with everything saved and
        sealed (a second SIGTERM, the machine's shutdown), takes nothing from the run."""
        return self.code != 0 and self.state not in (STOPPED, FINISHED)


@dataclasses.dataclass(frozen=True)
class Command(_Record):
    """``command.json``: what a running (or starting) engine is to do. A new order has a higher ``serial``.

    ``save``: save at the next step boundary and go on. ``stop``: save, seal and exit 0; with an ``epoch`` above
    the engine's own the engine also writes the fence, naming ``holder``, so that its status ``stopped`` is the
    source's acknowledgement; with a ``step`` that is still to come it first trains up to there. ``restore``: start
    from ``checkpoint``, whose root digest must be ``root_digest``.

    An attempt that is started with ``hold`` compiles, rehearses a few updates on ``checkpoint``, and waits for a
    ``restore`` (or a ``stop``). One that is started with ``replay`` trains on from ``checkpoint`` as a shadow, without
    fence, trackers or checkpoints; ``hold`` then bids it keep the parameters of ``step`` for comparison, ``promote``
    makes it the run from ``step`` on, and ``restore`` makes it drop its state for another.
    """

    action: str
    epoch: int = 1
    checkpoint: Optional[str] = dataclasses.field(default=None, metadata={"form": CHECKPOINT_NAME})
    root_digest: Optional[str] = None
    step: Optional[int] = None
    owner: str = dataclasses.field(default="", metadata={"form": NAME})
    migration: str = dataclasses.field(default="", metadata={"form": RUN_ID_OR_EMPTY})
    sequence: int = 1


@dataclasses.dataclass(frozen=True)
class Seal(_Record):
    """What was written under ``epoch`` or an older one counts up to and including checkpoint ``step-<step>``, and no
    further. ``alone``: of that very epoch only; what a rollback closes says nothing of what came before it."""

    epoch: int
    step: int
    alone: bool = False


@dataclasses.dataclass(frozen=True)
class Fence(_Record):
    """``fence.json``: who may go on with the run. ``seals`` holds one entry for every closed epoch, because a
    writer that was sealed two moves ago must not slip under the newest seal."""

    epoch: int
    owner: str = dataclasses.field(metadata={"form": NAME})
    sealed_step: Optional[int] = None  # where the current epoch began; None for a run that never moved
    seals: List[Dict[str, Any]] = dataclasses.field(default_factory=list, metadata={"items": Seal})

    def accepts(self, epoch: int, step: int) -> bool:
        """Whether a checkpoint ``step-<step>`` written under ``epoch`` belongs to the accepted lineage."""
        if epoch >= self.epoch:
            return True
        seals = [Seal._of(seal) for seal in self.seals]
        limits = [seal.step for seal in seals if seal.epoch == epoch or (seal.epoch > epoch and not seal.alone)]
        return bool(limits) and step <= min(limits)

    def sealed(self, epoch: int, holder: str, step: int) -> "Fence":
        """The fence after handing the run to ``holder`` under ``epoch``, with everything before it sealed at
        ``step``. RecordError unless ``epoch`` is higher than the present one."""
        if epoch <= self.epoch:
            raise RecordError(
                f"the fence is already at epoch {self.epoch} (holder {self.owner}); cannot seal with {epoch}"
            )
        return Fence(epoch, holder, step, [*self.seals, Seal(epoch - 1, step).to_json()])

    def rolled_back(self, holder: str, step: int) -> "Fence":
        """The fence after taking back the move that this one stands for: one more epoch, held by ``holder`` again,
        which goes on from its own ``step-<step>``. What the target has done past the seal is not accepted; what the
        source had saved past it is again. RecordError where there is no such move."""
        if self.sealed_step is None or not self.seals or step < self.sealed_step:
            raise RecordError(f"the fence (epoch {self.epoch}, sealed at {self.sealed_step}) has no move to take back")
        seals = [
            *self.seals[:-1],
            Seal(self.epoch - 1, step).to_json(),
            Seal(self.epoch, self.sealed_step, True).to_json(),
        ]
        return Fence(self.epoch + 1, holder, step, seals)


def first_fence(holder: str) -> Fence:
    """The fence of a run that has never moved."""
    return Fence(1, holder)


@dataclasses.dataclass(frozen=True)
class LineageEntry(_Record):
    """One attempt in the chain. ``last_step`` is None while it runs."""

    attempt: int
    epoch: int
    target: str = dataclasses.field(metadata={"form": NAME})
    devices: int
    device_kind: str
    first_step: int
    last_step: Optional[int] = None
    checkpoint: Optional[str] = dataclasses.field(
        default=None, metadata={"form": CHECKPOINT_NAME}
    )  # the one it started from; None for a fresh start
    root_digest: Optional[str] = None
    migration: str = dataclasses.field(default="", metadata={"form": RUN_ID_OR_EMPTY})
    started: float = 0.0


@dataclasses.dataclass(frozen=True)
class Lineage(_Record):
    """``lineage.json``: the chain of attempts of a run, oldest first."""

    LIMIT: ClassVar[int] = 1 << 24

    run_id: str = dataclasses.field(metadata={"form": RUN_ID})
    attempts: List[Dict[str, Any]] = dataclasses.field(default_factory=list, metadata={"items": LineageEntry})

    @property
    def entries(self) -> List[LineageEntry]:
        return [LineageEntry._of(entry) for entry in self.attempts]

    def with_entry(self, entry: LineageEntry) -> "Lineage":
        """With ``entry`` added, or in the place of the one with the same attempt number."""
        others = [old for old in self.attempts if old["attempt"] != entry.attempt]
        return Lineage(self.run_id, sorted([*others, entry.to_json()], key=lambda old: old["attempt"]))


@dataclasses.dataclass(frozen=True)
class Pin(_Record):
    """``pins/<migration>.json``: retention may not delete ``checkpoint`` before ``expires``."""

    checkpoint: str = dataclasses.field(metadata={"form": CHECKPOINT_NAME})
    expires: float


@dataclasses.dataclass(frozen=True)
class Store(_Record):
    """``store.json``: the run's checkpoints lie under ``<url>/runs/<run_id>/checkpoints``, not in this directory. Pins
    and the fence of the run lie beside them too, because several hosts may write there."""

    url: str  # gs://bucket/prefix


@dataclasses.dataclass(frozen=True)
class MigrationLock(_Record):
    """``migration_lock.json``: the migration that has the run in its hands, on this host: no other one gives orders
    or moves the
    fence to ``epoch``, unless ``expires`` has passed before that epoch began. Afterwards it says who began it."""

    migration: str = dataclasses.field(metadata={"form": RUN_ID})
    epoch: int
    owner: str = dataclasses.field(metadata={"form": NAME})  # the target
    expires: float


@dataclasses.dataclass(frozen=True)
class Restore(_Record):
    """``restore.json``: the engine's evidence, written after restoring and before its first update."""

    checkpoint: str = dataclasses.field(metadata={"form": CHECKPOINT_NAME})
    step: int
    root_digest: str  # recomputed from the bytes that were read
    expected_root_digest: str
    recorded_losses: List[float]  # losses of fixed sequences, as the checkpoint's writer measured them
    recomputed_losses: List[float]  # the same sequences, measured here from the restored state
    losses_error: float  # largest relative difference
    batch_digest: str  # of batch ``step``, the next one to be consumed
    recorded_batch_digest: str  # of the same batch, as the writer expected it
    devices: int = 0
    seconds: Dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class ParameterDrift(_Record):
    """``parameter_drift.json``: how far a replayed state is from the sealed one, at the step where the run crosses
    over."""

    step: int
    checkpoint: str = dataclasses.field(metadata={"form": CHECKPOINT_NAME})  # the sealed one
    root_digest: str  # recomputed from the bytes that were read
    distance: float  # |a-b| / |b| over all parameters, Euclidean norm
    worst: float  # the largest of the arrays' own distances
    worst_array: str
    parameters: int  # numbers that were compared


# ------------------------------------------------------------------------------------------------------ metrics


def parse_metrics(lines: Iterable[str]) -> List[Dict[str, Any]]:
    """Rows of ``metrics.jsonl``. A torn last line (the writer is still at it, or was killed) is left out; a torn
    line in the middle is a RecordError."""
    rows: List[Dict[str, Any]] = []
    torn: Optional[int] = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if torn is not None:
            raise RecordError(f"metrics.jsonl line {torn} is torn, and lines follow it")
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            torn = number
            continue
        step = row.get("global_step", 0) if isinstance(row, dict) else None
        if type(step) is not int or not 0 <= step <= json_shapes.LARGEST:
            raise RecordError(f"metrics.jsonl line {number} is not a row of metrics")
        rows.append(row)
    return rows


def splice(
    rows: Mapping[int, Sequence[Mapping[str, Any]]], lineage: Lineage, fence: Optional[Fence]
) -> List[Dict[str, Any]]:
    """The run's curve from the rows of each attempt: every step from the newest accepted attempt that has it.

    An attempt's line ``k`` is accepted where the fence accepts the state it led to, ``step-<k+1>``.
    Rows get the key ``attempt``. Rows without a ``global_step`` that is a step are left out.
    """
    epochs = {entry.attempt: entry.epoch for entry in lineage.entries}
    chosen: Dict[int, Dict[str, Any]] = {}
    for attempt in sorted(rows):
        epoch = epochs.get(attempt, 1)
        for row in rows[attempt]:
            step = row.get("global_step")
            if type(step) is not int or step < 0 or (fence is not None and not fence.accepts(epoch, step + 1)):
                continue
            if "train/loss" in row or step not in chosen:
                chosen[step] = dict(row, attempt=attempt)
            else:
                chosen[step].update({key: value for key, value in row.items() if key not in ("time",)})
    return [chosen[step] for step in sorted(chosen)]


def relative_difference(a: float, b: float) -> float:
    """|a-b| / max(|a|, |b|); 0 for two equal values, infinity where one of them is not finite."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return 0.0 if a == b else math.inf
    return 0.0 if a == b else abs(a - b) / max(abs(a), abs(b))


def batch_digest(example_digests: Iterable[bytes]) -> str:
    """SHA-256 over the per-example digests, in global example order."""
    total = hashlib.sha256()
    for digest in example_digests:
        total.update(digest)
    return total.hexdigest()


# --------------------------------------------------------------------------------------------------- checkpoint


@dataclasses.dataclass(frozen=True)
class ObjectEntry(_Record):
    """One file of a checkpoint (or of a token cache). ``path`` is relative to the manifest."""

    path: str
    size: int  # bytes
    sha256: str  # hex
    crc32c: str = ""  # base64 of the big-endian 4 bytes, as buckets report it
    host: str = ""  # where a checkpoint is spread, a host that holds it: a name of ``Manifest.hosts``; empty: all do


@dataclasses.dataclass(frozen=True)
class SpreadHost(_Record):
    """A host (or several, with one file system) that holds a share of a spread checkpoint."""

    host: str  # its name: the launcher's ($MIDSTREAM_HOST), else the machine's; unique within the checkpoint
    processes: List[int]  # the processes of the attempt that wrote there, by number
    directory: str  # the checkpoint's directory there, absolute


@dataclasses.dataclass(frozen=True)
class ArrayEntry(_Record):
    """One array. ``grid`` is the number of cells along each axis; ``objects`` lists its files in path order
    (for an array in ``small.safetensors`` that file alone, and an empty grid)."""

    name: str
    axes: List[str]
    shape: List[int]
    dtype: str = dataclasses.field(metadata={"form": DTYPE})
    grid: List[int]
    objects: List[str]
    sha256: str = ""  # of an array's elements in ``small.safetensors``; empty for others, whose objects have hashes


@dataclasses.dataclass(frozen=True)
class Manifest(_Record):
    """``manifest.json``: written last; a directory without it is no checkpoint.

    A *spread* checkpoint was saved by hosts without a shared file system. Each has a copy of the manifest, which
    differs in ``host`` alone, and of every object whose own ``host`` is empty or that host; the others have to be
    fetched. Where an object lies is no part of the root digest. Whoever has brought all objects together writes
    :meth:`collected`.
    """

    LIMIT: ClassVar[int] = LARGEST_FILE

    format: str
    version: int
    run_id: str = dataclasses.field(metadata={"form": RUN_ID})
    step: int
    attempt: int
    epoch: int
    created: float
    root_digest: str
    arrays: List[Dict[str, Any]] = dataclasses.field(metadata={"items": ArrayEntry})
    objects: List[Dict[str, Any]] = dataclasses.field(metadata={"items": ObjectEntry})
    hosts: List[Dict[str, Any]] = dataclasses.field(
        default_factory=list, metadata={"items": SpreadHost}
    )  # SpreadHost; empty: it is not spread
    host: str = ""  # which of ``hosts`` this copy lies on

    @classmethod
    def from_json(cls, value: Any, where: str = "") -> "Manifest":
        manifest = super().from_json(value, where)
        if manifest.format != FORMAT:
            raise RecordError(f"{where or MANIFEST}: format {manifest.format!r} is not {FORMAT!r}")
        if manifest.version > FORMAT_VERSION:
            raise RecordError(
                f"{where or MANIFEST}: version {manifest.version} is newer than this midstream reads ({FORMAT_VERSION})"
            )
        for entry in manifest.object_entries:
            if not safe_relative(entry.path):
                raise RecordError(f"{where or MANIFEST}: object path {entry.path!r} leaves the directory")
        for array in manifest.array_entries:
            if len(array.axes) != len(array.shape) or not _is_countable(array.shape):
                raise RecordError(f"{where or MANIFEST}: array {array.name!r} of axes {array.axes} has another shape")
        return manifest

    @property
    def name(self) -> str:
        return checkpoint_name(self.step, self.attempt)

    @functools.cached_property
    def object_entries(self) -> List[ObjectEntry]:
        return [ObjectEntry._of(entry) for entry in self.objects]

    @functools.cached_property
    def array_entries(self) -> List[ArrayEntry]:
        return [ArrayEntry._of(entry) for entry in self.arrays]

    @property
    def size(self) -> int:
        """Bytes of all objects, the manifest itself left out."""
        return sum(entry["size"] for entry in self.objects)

    @property
    def spread_hosts(self) -> List[SpreadHost]:
        return [SpreadHost._of(entry) for entry in self.hosts]

    @property
    def elsewhere(self) -> Dict[str, List[ObjectEntry]]:
        """The objects that other hosts hold, by host: those need not lie beside this copy of the manifest."""
        found: Dict[str, List[ObjectEntry]] = {}
        for entry in self.object_entries:
            if self.hosts and entry.host not in ("", self.host):
                found.setdefault(entry.host, []).append(entry)
        return found

    def collected(self) -> "Manifest":
        """The manifest of the same checkpoint where all its objects lie in one place. Its root digest is the same."""
        objects = [{**entry, "host": ""} for entry in self.objects]
        return dataclasses.replace(self, objects=objects, hosts=[], host="")


def _is_countable(shape: Sequence[int]) -> bool:
    """Whether the number of elements fits 64 bits."""
    total = 1
    for length in shape:
        total *= length
        if total > json_shapes.LARGEST:
            return False
    return True


def safe_relative(path: str) -> bool:
    """Whether ``path`` stays below the directory it is relative to, spelled in its one canonical way."""
    return (
        bool(path)
        and not path.startswith("/")
        and path == posixpath.normpath(path)
        and path.split("/")[0] != ".."
        and not any(character < " " or character == "\x7f" for character in path)
    )


def root_digest(arrays: Sequence[ArrayEntry], sha256: Mapping[str, str], state: Mapping[str, Any]) -> str:
    """The checkpoint's identity: SHA-256 of the canonical JSON of the arrays, sorted by name, each with the
    hashes of its objects (``sha256``: path -> hex), together with ``train.json``'s ``state``."""
    described = [
        {
            "name": array.name,
            "axes": list(array.axes),
            "shape": list(array.shape),
            "dtype": array.dtype,
            "grid": list(array.grid),
            "objects": [[path, sha256[path]] for path in array.objects],
        }
        for array in sorted(arrays, key=lambda array: array.name)
    ]
    return hashlib.sha256(canonical_json({"arrays": described, "state": state})).hexdigest()


def data_digests(train: Mapping[str, Any]) -> List[str]:
    """Of every token cache that the run of a checkpoint reads from its host's data directory, by its ``train.json``:
    the one that it trains on, then its validation sets. Empty where they lie in a bucket (``data.cache_dir``). In the
    end the files of a tokenizer that came along with the run."""
    try:
        provenance = train.get("provenance") or {}
        config = (provenance.get("config") or {}).get("data") or {}
        digests = tokenizer_digests(config.get("tokenizer"))
        if not config.get("cache_dir"):
            sets = provenance.get("validation") or {}
            own = [train["state"].get("data_digest", ""), *(sets[name]["digest"] for name in sorted(sets))]
            digests = [*own, *digests]
    except (AttributeError, KeyError, TypeError) as error:
        raise RecordError(f"train.json: another shape than expected ({type(error).__name__}: {error})") from None
    return list(dict.fromkeys(_digest(digest) for digest in digests if digest))


def _digest(value: Any) -> str:
    """The digest itself, which names a directory. RecordError where it could name anything else."""
    if not isinstance(value, str) or not re.fullmatch(DIGEST.pattern, value):
        raise RecordError(f"train.json: {str(value)[:60]!r} is not a digest of data")
    return value


def tokenizer_digests(tokenizer: Any) -> List[str]:
    """Of the files that ``data.tokenizer`` names where they came along with a run from elsewhere; else none."""
    name = str(tokenizer or "")
    return [name.rstrip("/").rpartition("/")[2]] if name.startswith(IMPORTED) else []


def crc32c_base64(value: int) -> str:
    """A crc32c as buckets spell it."""
    return base64.b64encode(value.to_bytes(4, "big")).decode()
