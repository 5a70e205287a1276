"""Flags of a training program, from what it prints for ``--help``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# argparse, click and absl begin a flag's line with it: "  -o OUT, --out OUT", "  --resume TEXT", "  --[no]resume:".
_LINE = re.compile(r"^\s{1,12}(?:-\w(?:[ =]\S+)?,\s+)?(--\[?[A-Za-z][^\s]*.*)$", re.MULTILINE)
_FLAG = re.compile(r"--(?:\[no-?\])?([A-Za-z][\w.-]*)(?:[ =]+([<\[{]?[A-Z_<{\[][^\s,]*))?")
_DEFAULT = re.compile(r"[\[(]?default(?::| is|=)\s*'?([^\s)\]',;]+)", re.IGNORECASE)

OUTPUT = (
    "output_dir",
    "out_dir",
    "out",
    "output",
    "save_dir",
    "checkpoint_dir",
    "ckpt_dir",
    "save",
    "work_dir",
    "logdir",
)
RESUME = ("resume_from_checkpoint", "resume_from", "resume", "load_checkpoint", "checkpoint_path", "ckpt_path",
          "restore", "load", "init_from_checkpoint", "checkpoint")  # fmt: skip
STEPS = ("max_steps", "num_train_steps", "train_steps", "train_iters", "max_iters", "num_steps", "total_steps", "steps")
PER_DEVICE = ("per_device_train_batch_size", "micro_batch_size", "per_device_batch_size", "device_batch_size")
ACCUMULATION = (
    "gradient_accumulation_steps",
    "accumulate_grad_batches",
    "grad_accum_steps",
    "grad_accum",
    "accumulation",
)


@dataclass(frozen=True)
class HelpFlag:
    """Flag of a program.

    ``takes_value``: it is followed by one. ``default``: as the help has it; empty: none.
    """

    name: str  # with its dashes, as it is written
    takes_value: bool = True
    default: str = ""


def flags_of(text: str) -> dict[str, HelpFlag]:
    """Return the flags of a help text, by their names without dashes, ``_`` for ``-``."""
    flags: dict[str, HelpFlag] = {}
    lines = list(_LINE.finditer(text))
    for number, line in enumerate(lines):
        end = lines[number + 1].start() if number + 1 < len(lines) else len(text)
        default = _DEFAULT.search(text[line.start() : end])
        for match in _FLAG.finditer(line[1].split("  ")[0]):
            flag = HelpFlag(f"--{match[1]}", bool(match[2]), default[1] if default else "")
            flags.setdefault(match[1].replace("-", "_"), flag)
    return flags


def chosen(flags: Mapping[str, HelpFlag], names: Sequence[str]) -> HelpFlag | None:
    """Return the first of ``names`` that the program has."""
    return next((flags[name] for name in names if name in flags), None)


def value_in(words: Sequence[str], names: Sequence[str]) -> tuple[str, str] | None:
    """Return flag and value of the first of ``names`` that a command line has.

    The flag is returned as it is written; one without a value does not count.
    """
    for name in names:
        for index, word in enumerate(words):
            flag, equals, value = word.partition("=")
            if not flag.startswith("--") or flag[2:].replace("-", "_") != name:
                continue
            if equals:
                return flag, value
            if index + 1 < len(words) and not words[index + 1].startswith("-"):
                return flag, words[index + 1]
    return None


def with_value(words: Sequence[str], flag: str, value: str | None) -> list[str]:
    """Return a command line with another value of a flag; None: without the flag."""
    result: list[str] = []
    skip = False
    for index, word in enumerate(words):
        if skip:
            skip = False
            continue
        name, equals, _ = word.partition("=")
        if name != flag:
            result.append(word)
        elif equals:
            result += [] if value is None else [f"{flag}={value}"]
        else:
            skip = index + 1 < len(words) and not words[index + 1].startswith("-")
            result += [] if value is None else [flag, value]
    return result
