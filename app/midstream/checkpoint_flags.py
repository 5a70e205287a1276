"""Flags about checkpoints: list, verify, compare, export, divide."""

from __future__ import annotations

from midstream.flag_parser import FlagParser, number
from midstream_core.export_formats import EXPORT_FORMATS


def add_checkpoints(flags: FlagParser) -> None:
    """Add the modes and flags of the section."""
    checkpoints = flags.section("checkpoints")
    checkpoints.mode(
        "--checkpoints", metavar="RUN", nargs="?", const="", completes="checkpoints",
        help="list the checkpoints of a run or of all runs, or the arrays of a CHECKPOINT",
    )  # fmt: skip
    checkpoints.flag(
        "--tree", of=("--checkpoints",), action="store_true", help="show the arrays of the newest checkpoint"
    )
    checkpoints.mode(
        "--verify", metavar="CHECKPOINT", completes="checkpoints",
        help="verify a checkpoint (directory, HOST:PATH, gs://, s3://, RUN) or a MIGRATION again",
    )  # fmt: skip
    checkpoints.flag("--deep", of=("--verify", "--checkpoints"), action="store_true", help="decode every array")
    checkpoints.mode(
        "--diff",
        metavar=("A", "B"),
        nargs=2,
        completes="checkpoints",
        help="compare two checkpoints by their manifests",
    )

    checkpoints.mode(
        "--export", metavar="RUN[@STEP]", needs=("--as", "--output"), completes="runs",
        help="export a checkpoint of a run, the newest or that of a step, for another program",
    )  # fmt: skip
    checkpoints.flag(
        "--as", of=("--export",), choices=tuple(EXPORT_FORMATS), dest="as_", metavar="FORMAT",
        help="; ".join(f"{name}: {about}" for name, about in EXPORT_FORMATS.items()) + "; all but the first with the "
        "optimizer",
    )  # fmt: skip
    checkpoints.mode(
        "--reshard", metavar="PATH|HOST:PATH", needs=("--processes", "--output"), completes="files",
        help="divide a checkpoint of DeepSpeed over another number of processes",
    )  # fmt: skip
    checkpoints.flag(
        "--processes", of=("--reshard", "--export"), type=number, metavar="N",
        help="all processes that will load the checkpoint; of an export to neox or deepspeed the data-parallel ones "
        "(default: 1)",
    )  # fmt: skip
    checkpoints.flag(
        "--model-parallel-size", of=("--export",), type=number, metavar="N",
        help="tensor-parallel ranks of an export to neox (default: 1)",
    )  # fmt: skip
    checkpoints.flag(
        "--output", of=("--export", "--reshard"), metavar="PATH|HOST:PATH", completes="files",
        help="the directory to create, on the host that has the run or the checkpoint",
    )  # fmt: skip
