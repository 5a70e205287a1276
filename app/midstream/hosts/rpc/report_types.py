"""Types of the lines of programs on a host: the events of each program, by name.

`report_of` checks a line against its type and returns it as that type. Lines of the probe are in `probe_lines`.
Annotations are values here (no deferred evaluation).
"""

from dataclasses import dataclass, field
from typing import Annotated

from midstream.hosts.rpc.reporting_program import Events, ReportingProgram
from midstream_core.json_shapes import Form
from midstream_host.copy import growing_checkpoint
from midstream_host.driver.reshard import program
from midstream_host.machine import compilation, conda_environments, environments, network
from midstream_host.shapes import FileName, Measured, Signed, Text
from midstream_host.verify import array_check, tree

# An IP address, with its zone; a machine does not report names.
Address = Annotated[str, Form("an IP address", r"[0-9A-Fa-f:.]{2,45}(%[\w.-]{1,16})?")]


@dataclass(frozen=True)
class Problem:
    """The last line of a program that failed."""

    message: Text
    kind: str = ""


@dataclass(frozen=True)
class Listening:
    """The program listens on ``port``; ``addresses`` are those of its machine."""

    port: int
    addresses: list[Address] = field(default_factory=list[str])


@dataclass(frozen=True)
class Connected:
    """The program is connected with the one that listens."""


@dataclass(frozen=True)
class Done:
    """The program, or its stream of this number, has ended without a problem."""

    stream: int | None = None


# -------------------------------------------------------------------------------------- growing_checkpoint.follow


@dataclass(frozen=True)
class Object:
    """A file of a checkpoint."""

    path: FileName
    size: int  # bytes
    sha256: str  # hex


@dataclass(frozen=True)
class Named:
    """The checkpoint that is being saved."""

    name: FileName


@dataclass(frozen=True)
class Complete:
    """Objects of it that have all their bytes."""

    name: FileName
    objects: list[Object]


FOLLOW = ReportingProgram(
    growing_checkpoint.follow, {"named": Named, "complete": Complete, "answered": growing_checkpoint.Answered}
)


# -------------------------------------------------------------------------------- tree.verify, array_check.examine


@dataclass(frozen=True)
class TreeSize:
    """Contents of the manifest."""

    bytes: int
    objects: int


@dataclass(frozen=True)
class CheckedObject:
    """An object that was hashed; ``wrong`` says what is wrong with it."""

    path: FileName
    bytes: int
    wrong: Text | None = None


@dataclass(frozen=True)
class VerifiedTree:
    """Result for all objects; root digest as recorded, and recomputed from the bytes."""

    extra: list[FileName]  # files that the manifest does not list
    recorded: str | None
    recomputed: str | None
    problems: list[tuple[FileName, Text]]


@dataclass(frozen=True)
class ExaminedTree(VerifiedTree):
    """The result of an examination of a checkpoint's arrays.

    ``by``: the engine or the standard library.
    """

    recorded: str
    objects: int
    bytes: int
    by: str = ""


@dataclass(frozen=True)
class ArrayContent:
    """An array's norm and number of non-finite elements; None where not computed."""

    name: str
    norm: Measured | None = None
    not_finite: int = 0


VERIFY = ReportingProgram(
    tree.verify, {"tree": TreeSize, "checked": CheckedObject, "verified": VerifiedTree, "problem": Problem}
)
Verifying = TreeSize | CheckedObject | VerifiedTree | Problem
Examining = ArrayContent | CheckedObject | ExaminedTree | Problem
EXAMINE = ReportingProgram(
    array_check.examine, {"array": ArrayContent, "checked": CheckedObject, "verified": ExaminedTree, "problem": Problem}
)


# ------------------------------------------------------------------------------------------------ reshard.program


@dataclass(frozen=True)
class WrittenBytes:
    """Bytes of a checkpoint that are written, of all."""

    done: int
    total: int


@dataclass(frozen=True)
class Divided:
    """A checkpoint was divided over other processes.

    ``ranks``: data-parallel ones, and ``ranks_before`` those that saved it. ``digests``: SHA-256 of each kind of
    number, equal before and after. ``continued``: files that an ended conversion had written.
    """

    ranks_before: int
    ranks: int
    files: int
    bytes: int
    digests: list[tuple[Text, Text]]
    continued: int
    step: int | None = None


Dividing = WrittenBytes | Divided | Problem
DIVIDE = ReportingProgram(program.divide, {"progress": WrittenBytes, "done": Divided, "problem": Problem})


# --------------------------------------------------------------------------------- environments.build, network.listen


@dataclass(frozen=True)
class OutputLine:
    """A line of an installer's output."""

    text: Text


@dataclass(frozen=True)
class Built:
    """The environment's interpreter, and how it was built."""

    python: FileName
    how: str


Building = OutputLine | Built | Problem
BUILD = ReportingProgram(environments.build, {"line": OutputLine, "done": Built, "problem": Problem})
BUILD_CONDA = ReportingProgram(conda_environments.build, {"line": OutputLine, "done": Built, "problem": Problem})


@dataclass(frozen=True)
class Compiling:
    """The compiler still runs; ``memory``: bytes that it uses."""

    memory: int


@dataclass(frozen=True)
class CompilationEnd:
    """End of a compilation; ``memory``: the most bytes that it used."""

    code: Signed
    error: Text
    seconds: float
    memory: int


ESTIMATE = ReportingProgram(compilation.estimate, {"line": OutputLine, "running": Compiling, "done": CompilationEnd})
LISTEN = ReportingProgram(network.listen, {"listening": Listening, "done": Done, "problem": Problem})


# ------------------------------------------------------------------------------------------ programs of a copy


@dataclass(frozen=True)
class Landed:
    """Bytes that the receiver has written: complete objects, and ranges of others.

    A range is ``(path, offset, length)``.

    ``received`` are the bytes that the stream brought, fewer where chunks were packed.
    """

    bytes: int
    received: int
    objects: list[Text]
    ranges: list[tuple[Text, int, int]]
    stream: int | None = None  # number of the stream, if the program has several


@dataclass(frozen=True)
class Placed:
    """Objects that are verified and in their place."""

    objects: list[Text]


@dataclass(frozen=True)
class Present:
    """Objects that the target's tree has."""

    objects: list[Text]


@dataclass(frozen=True)
class Reused:
    """Objects that another tree of the target had."""

    objects: list[Text]


@dataclass(frozen=True)
class PartialObject:
    """Chunks of an object on the target: ``(offset, length, SHA-256)``."""

    path: Text
    chunks: list[tuple[int, int, Text]]


@dataclass(frozen=True)
class CopyProblem:
    """Reason why the program cannot continue."""

    kind: Text
    path: Text = ""
    message: Text = ""
    hint: Text = ""
    free: int = 0  # bytes
    needed: int | None = None  # bytes
    stream: int | None = None


@dataclass(frozen=True)
class Waiting:
    """Another copy writes to the same directory."""

    message: Text = ""


@dataclass(frozen=True)
class Ready:
    """The target has reported what it has."""


@dataclass(frozen=True)
class Committed:
    """The manifest is written."""


CopyLine = (
    Landed
    | Placed
    | Present
    | Reused
    | PartialObject
    | Listening
    | Connected
    | CopyProblem
    | Waiting
    | Ready
    | Committed
    | Done
)
# The programs at both ends of a copy, on a disk or in a bucket.
COPY: Events[CopyLine] = {
    "landed": Landed,
    "placed": Placed,
    "present": Present,
    "held": Reused,
    "part": PartialObject,
    "listening": Listening,
    "connected": Connected,
    "problem": CopyProblem,
    "waiting": Waiting,
    "ready": Ready,
    "committed": Committed,
    "done": Done,
}
