"""Patterns of strings in records.

The strings become parts of paths or are shown to a user.
"""

from midstream_core import json_shapes

CHECKPOINT_NAME = json_shapes.Form(
    "a checkpoint's name", r"step-(?:0|[1-9][0-9]{0,17})-a[0-9]{3,18}(?:-s[1-9][0-9]{0,17})?"
)
RUN_ID = json_shapes.Form("a run id", r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
RUN_ID_OR_EMPTY = json_shapes.Form("a run id", r"(?:[A-Za-z0-9][A-Za-z0-9._-]{0,127})?")
DTYPE = json_shapes.Form("a type of elements", r"bool|u?int(?:8|16|32|64)|b?float16|float(?:32|64)")
# Names are shown to users: no control characters, nor the characters that change the direction of writing.
_INVISIBLE = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
NAME = json_shapes.Form("a name without control characters", "[^" + _INVISIBLE + "]{0,255}")
DIGEST = json_shapes.Form("a digest", r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
DIGEST_OR_EMPTY = json_shapes.Form("a digest", r"(?:[A-Za-z0-9][A-Za-z0-9_-]{0,127})?")
