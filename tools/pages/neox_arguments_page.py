"""Writer of the page ``docs/reference/neox-arguments.md``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from midstream_engine.interop.neox.arguments import ADAM, ARGUMENTS, CARRIED, CHECKED, ELSEWHERE, NO_EFFECT, Argument

_INTRODUCTION = """\
# Arguments of GPT-NeoX

<!-- Written by `make pages`; a test compares. -->

What an [import](imports.md#gpt-neox-and-deepspeed) does with each argument that GPT-NeoX has had, up to its
commit ea7aefd8 (2026-05-19). Names are written with `_`; the configuration may have `-`. An argument that is not set
has NeoX's default.
"""
_SECTIONS = (
    (CARRIED, "Carried over", "", "becomes"),
    (
        CHECKED, "Accepted with one value",
        "Another value is refused: the run would train something else. `unset` is null, false, 0 or an empty list; a\n"
        "section with `enabled: false` is unset.\n", "accepted",
    ),
    (
        ELSEWHERE, "Set elsewhere",
        "The training does not depend on them. They are not imported, and a line of `train.yaml` names those that are\n"
        "set.\n",
        "set here as",
    ),
    (NO_EFFECT, "Without effect on the result", "They are ignored without a line.\n", "concerns"),
)  # fmt: skip
_END = """
A name that is not on this page is ignored, and a line of `train.yaml` names it. Arguments of `deepspeed_extra_args`
count as if they stood beside it; of `zero_optimization` only `round_robin_gradients: true` is refused.
"""


def document() -> str:
    """Return the page."""
    return "\n".join([_INTRODUCTION, *_sections()]) + _END


def _sections() -> Iterator[str]:
    rows = {**ARGUMENTS, **{f"optimizer.params.{name}": argument for name, argument in ADAM.items()}}
    for treatment, title, text, column in _SECTIONS:
        yield f"## {title}\n"
        if text:
            yield text
        mine = {name: argument for name, argument in rows.items() if argument.treatment == treatment}
        if treatment in (ELSEWHERE, NO_EFFECT):
            yield f"| {column} | arguments |\n|---|---|"
            for about in dict.fromkeys(argument.about for argument in mine.values()):
                names = sorted(name for name, argument in mine.items() if argument.about == about)
                shown = re.sub(r"[a-z]+\.[a-z_]+|--data", r"`\g<0>`", about)
                yield f"| {shown} | {', '.join(f'`{name}`' for name in names)} |"
        elif treatment == CHECKED:
            yield f"| argument | {column} | another value means |\n|---|---|---|"
            for name, argument in sorted(mine.items()):
                yield f"| `{name}` | {_accepted(argument)} | {argument.about} |"
        else:
            yield f"| argument | {column} |\n|---|---|"
            for name, argument in sorted(mine.items()):
                yield f"| `{name}` | {argument.about} |"
        yield ""


def _accepted(argument: Argument) -> str:
    """Return the accepted values, as YAML writes them."""
    return ", ".join("unset" if one is None else f"`{str(one).lower()}`" for one in argument.accepted)
