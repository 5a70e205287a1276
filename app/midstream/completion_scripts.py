"""Completion scripts of bash, zsh and fish, made from the parser by shtab.

Names come from `midstream --print-names KIND WORD...`, which reads local files only (`local_names`).
"""

from __future__ import annotations

from typing import Any

import shtab

from midstream.completion_names import KINDS
from midstream.flag_parser import FlagParser

# $1: the word to complete. bash treats the values as files because of "_file" in the name.
_BASH_CONFIGS = """\
_midstream_config_file() {
  compgen -f -X '!*.y*ml' -- "$1"
  compgen -d -- "$1"
  _midstream_configs "$1"
}"""
_ZSH_CONFIGS = """\
_midstream_config_file() {
  _files -g '*.(yaml|yml)'
  _midstream_configs
}"""
_BASH = """\
_midstream_{kind}() {{
  compgen -W "$(midstream --print-names {kind} "${{COMP_WORDS[@]:1}}" 2>/dev/null)" -- "$1"
}}"""
_ZSH = """\
_midstream_{kind}() {{
  compadd -- ${{(f)"$(midstream --print-names {kind} ${{words[2,-1]}} 2>/dev/null)"}}
}}"""


def script(parser: FlagParser, shell: str) -> str:
    """Return the completion script of a shell.

    The parser is changed: it cannot parse afterwards.
    """
    for name, note in parser.notes.items():
        if note.completes:
            action: Any = parser.actions[name]
            action.complete = _values(note.completes)
    # After a flag without a value, and after a value, the modes are offered, or the flags of the one that is given.
    rest: Any = parser.add_argument("flag", nargs="*", help="flag")
    rest.complete = _names("flags")
    return shtab.complete(parser, shell) + "\n"


def _values(kind: str) -> dict[str, Any]:
    """Return shtab's description of the values of a kind."""
    if kind == "files":
        return shtab.FILE
    names = _names(kind)
    if kind != "configs":
        return names
    scripts = names["preamble"]
    return {
        "bash": "_midstream_config_file",
        "zsh": "_midstream_config_file",
        "fish": f"(__fish_complete_suffix .yaml) {names['fish']}",
        "preamble": {
            "bash": f"{scripts['bash']}\n{_BASH_CONFIGS}",
            "zsh": f"{scripts['zsh']}\n{_ZSH_CONFIGS}",
        },
    }


def _names(kind: str) -> dict[str, Any]:
    """Return shtab's description of names that midstream prints."""
    assert kind in KINDS, kind
    return {
        "bash": f"_midstream_{kind}",
        "zsh": f"_midstream_{kind}",
        "fish": f"(midstream --print-names {kind} (commandline -opc)[2..-1] 2>/dev/null)",
        "preamble": {"bash": _BASH.format(kind=kind), "zsh": _ZSH.format(kind=kind)},
    }
