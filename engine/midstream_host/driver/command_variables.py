"""Variables in a trainer's command.

A word ``$NAME`` or ``--flag=$NAME`` gets the value of its environment. A run file that was written from a running
program has them in the place of secrets.
"""

from __future__ import annotations

import re
from typing import List, Mapping, Sequence

from midstream_core.records import RecordError

_WORD = re.compile(r"((?:--?)?[A-Za-z_][\w.-]*=)?\$([A-Z][A-Z0-9_]*)")


def with_variables(words: Sequence[str], environment: Mapping[str, str]) -> List[str]:
    """Return the words with the values of their variables.

    Scripts of a shell (``sh -c``) have words of other forms, and are left to the shell.

    Raises RecordError for a variable that is not set.
    """
    expanded: List[str] = []
    for word in words:
        match = _WORD.fullmatch(word)
        if match is None:
            expanded.append(word)
            continue
        name = match.group(2)
        if name not in environment:
            raise RecordError(
                "the command has ${0}, which is not set (hint: secrets: {{{0}: env:{0}}} of the host in the fleet "
                "file)".format(name)
            )
        expanded.append((match.group(1) or "") + environment[name])
    return expanded
