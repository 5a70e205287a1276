"""Number in a checkpoint's name that may be its step.

A name is the user's: its number counts as the step only where the logged steps agree with it.
"""

from __future__ import annotations

import re
from typing import Optional

# Names of a step in the state. A number behind another one ("steps", "iterations") may be that of the complete run.
STEP_NAMES = ("global_step", "global_steps", "step", "iter_num", "iteration", "iter", "it", "update")
MAX_DIGITS = 18  # digits of a number
# 2026-11-28, 20261128, with a time behind it or not: 2026-11-28_23-47-57.044119, 20261128T235811Z
_MOMENT = re.compile(
    r"(?<!\d)(?:19|20)\d\d([-_.]?)(?:0[1-9]|1[0-2])\1(?:0[1-9]|[12]\d|3[01])"
    r"(?:[-_T. ]*(?:[01]\d|2[0-3])([-_.:h]?)[0-5]\d(?:\2[0-5]\d(?:[.,_-]?\d{3,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?(?!\d)"
)
_TIME = re.compile(r"(?<!\d)(?:[01]\d|2[0-3])([-_:])[0-5]\d\1[0-5]\d(?!\d)")
_SUFFIXES = re.compile(r"(?:\.[A-Za-z]\w*)+$")  # of a file
_VERSION = re.compile(r"[-_.]v\d+$", re.IGNORECASE)  # of a name that was taken: Lightning and others add it
_STEP = re.compile(
    r"(?<![A-Za-z])(?:global[-_]?)?(?:steps?|iter(?:ations?|s|[-_]?num)?|updates?|it)[-_= ]{0,2}"
    r"(\d+)(?!\d|[A-Za-z]|\.\d)",
    re.IGNORECASE,
)
_END = re.compile(r"(?:^|(?P<before>[^\d]))(?P<number>\d+)$")
_WORD = re.compile(r"([A-Za-z]+)[-_= ]*$")
# Words before a number that is no count of updates.
_OTHER = re.compile(
    r"ep?|epochs?|seed|v|ver|version|r|rank|lr|loss|ppl|score|acc|accuracy|fold|part|shard|stage|phase|"
    r"attempt|bs|batchsize|size|layers|heads|dim|rev",
    re.IGNORECASE,
)


def step_in(name: str) -> Optional[int]:
    """Return the number in a name that may be a step; None where it has none.

    A number behind a word such as ``step`` is preferred to the last one at the end of the name. A date, a time, a
    decimal, or a number behind another word such as ``epoch`` or ``seed`` is none.
    """
    stem = _TIME.sub("", _MOMENT.sub("", _SUFFIXES.sub("", name)))
    stem = _VERSION.sub("", stem).rstrip("-_. ")
    named = _STEP.findall(stem)
    if named:
        return _value(named[-1])
    match = _END.search(stem)
    if match is None:
        return None
    before = stem[: match.start("number")]
    if re.search(r"\d[.,]$|\d[eE][-+]?$", before):  # the end of a decimal
        return None
    word = _WORD.search(before)
    if word is not None and _OTHER.fullmatch(word.group(1)):
        return None
    return _value(match.group("number"))


def step_of_number(number: Optional[float]) -> Optional[int]:
    """Return a number as a step; None for one that is none."""
    return int(number) if number is not None and 0 <= number < 1 << 53 and number == int(number) else None


def _value(digits: str) -> Optional[int]:
    return int(digits) if len(digits) <= MAX_DIGITS else None
