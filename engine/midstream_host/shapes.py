"""Types of fields in the results of hosts: limits on strings and numbers.

The limits extend the defaults of `json_shapes`. The marks are names in `json_shapes.MARKS`: every stream begins with
this module, and that one takes time to import. Python 3.8 has no `Annotated`: there a field has its plain type. The
app, which has a newer Python, checks the answers.
"""

from __future__ import annotations

import sys

from midstream_core.json_types import JsonValue

if sys.version_info >= (3, 9):
    from typing import Annotated as Annotated  # novm: guarded
else:

    class Annotated:
        """Takes the place of `typing.Annotated`."""

        def __class_getitem__(cls, item: JsonValue) -> JsonValue:
            return item[0]


Text = Annotated[str, "text"]  # a file's content: its length is limited by the answer's
FileName = Annotated[str, "file name"]  # not necessarily UTF-8
Signed = Annotated[int, "signed"]
Measured = Annotated[float, "measured"]  # a loss may be NaN
