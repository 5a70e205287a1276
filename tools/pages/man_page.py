"""Man page docs/reference/midstream.1, which wheels install in share/man/man1."""

from __future__ import annotations

from collections.abc import Iterator

from midstream import __version__
from midstream.errors import MEANINGS
from midstream.flag_parser import SCREEN, FlagParser
from midstream.flags import DESCRIPTION, EXAMPLES, parser

_ABOUT = (
    f"Without a mode, midstream opens {SCREEN}: hosts, runs, loss curves and logs; m migrates a run. With a mode it "
    "runs one command without it. Words after -- are flags of the engine.",
    "A migration stops a run at the boundary of a step, copies its state, and starts it on another target, on any "
    "number of devices. It certifies the result, and rolls back if anything fails.",
)
_ENVIRONMENT = (
    ("MIDSTREAM_FLEET", "the fleet file, if there is no --fleet"),
    ("MIDSTREAM_STATE", "directory of migrations and of what is remembered, instead of ~/.local/state/midstream"),
    ("NO_COLOR", "the terminal UI uses no colours"),
)
_FILES = (
    ("~/.config/midstream/fleet.yaml", "hosts, targets and stores"),
    ("~/.local/state/midstream/migrations/", "plan, journal and certificate of each migration"),
    ("~/.midstream/", "on each host: runs, engines, environments and data"),
)


def page() -> str:
    """Return the page as roff (man)."""
    return "\n".join(_lines(parser())) + "\n"


def _lines(flags: FlagParser) -> Iterator[str]:
    yield f'.TH MIDSTREAM 1 "" "midstream {__version__}" "User Commands"'
    yield '.\\" Written by `make pages`; a test compares.'
    yield ".ad l"
    yield ".SH NAME"
    yield f"midstream \\- {_escaped(DESCRIPTION[0].lower() + DESCRIPTION[1:].rstrip('.'))}"
    yield ".SH SYNOPSIS"
    yield ".B midstream"
    yield "[\\fB\\-\\-fleet\\fR \\fIFILE\\fR]"
    yield ".br"
    yield ".B midstream"
    yield "\\fIMODE\\fR [\\fIFLAGS\\fR] [\\fB\\-\\-\\fR \\fIENGINE FLAGS\\fR]"
    yield ".SH DESCRIPTION"
    yield _escaped(DESCRIPTION)
    for text in _ABOUT:
        yield ".PP"
        yield _escaped(text)
    section = ""
    for name, note in flags.notes.items():
        if note.section != section:
            section = note.section
            yield f'.SH "{_escaped(section.upper())}"'
        yield ".TP"
        yield _shown(flags, name)
        yield _escaped(f"{flags.texts[name]}{flags.remark(name)}")
    yield '.SH "EXIT STATUS"'
    yield from _definitions(tuple((str(int(code)), text) for code, text in MEANINGS.items()))
    yield ".SH ENVIRONMENT"
    yield from _definitions(_ENVIRONMENT)
    yield ".SH FILES"
    yield from _definitions(_FILES)
    yield ".SH EXAMPLES"
    yield ".nf"
    yield from (_escaped(command) for command, _ in EXAMPLES)
    yield ".fi"
    yield '.SH "SEE ALSO"'
    yield ".BR ssh_config (5)"


def _shown(flags: FlagParser, name: str) -> str:
    """Return a flag in bold, its values in italics."""
    words = flags.shown(name).split(" ")
    return " ".join([f"\\fB{_escaped(words[0])}\\fR", *(f"\\fI{_escaped(word)}\\fR" for word in words[1:])])


def _definitions(entries: tuple[tuple[str, str], ...]) -> Iterator[str]:
    for term, text in entries:
        yield ".TP"
        yield f"\\fB{_escaped(term)}\\fR"
        yield _escaped(text)


def _escaped(text: str) -> str:
    """Return a text as roff.

    Backslashes, hyphens and quotes mean themselves, and no line is a request.
    """
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("'", "\\(aq")
    return f"\\&{escaped}" if escaped.startswith(".") else escaped
