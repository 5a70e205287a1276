"""Secrets in a command line, replaced by ``$NAME``, which ``secrets:`` supplies."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Last part, or last two parts, of a flag's name whose value is a secret.
_LAST = frozenset({"token", "apikey", "password", "passwd", "passphrase", "pwd", "secret", "credential", "credentials"})
_LAST_TWO = frozenset(
    (kind, "key") for kind in ("api", "access", "secret", "auth", "private", "wandb", "hf", "openai", "comet")
)
_OF_A_TOKENIZER = frozenset({"pad", "eos", "bos", "unk", "mask", "sep", "cls", "special", "image", "stop"})
# Forms of well-known secrets, by the variable that usually holds each.
_FORMS = (
    ("HF_TOKEN", r"hf_[A-Za-z0-9]{16,}"),
    ("OPENAI_API_KEY", r"sk-[A-Za-z0-9_-]{16,}"),
    ("GITHUB_TOKEN", r"gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}"),
    ("GITLAB_TOKEN", r"glpat-[A-Za-z0-9_-]{16,}"),
    ("AWS_ACCESS_KEY_ID", r"(?:AKIA|ASIA)[A-Z0-9]{16}"),
    ("SLACK_TOKEN", r"xox[abeoprs]-[A-Za-z0-9-]{10,}"),
    ("WEB_TOKEN", r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),
    ("SERVICE_URL", r"[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@\S*"),
)
# The same within a longer word, such as a JSON object or a path of arguments; names of files are none.
_WITHIN = tuple((name, re.compile(rf"(?<![\w/.-])(?:{pattern})(?!\w)")) for name, pattern in _FORMS)
_INNER = re.compile(r"""([A-Za-z_][\w.-]*)["']?\s*[:=](?!//)\s*["']?([^\s?"',}\]&]+)""")  # "token": "...", ?token=...
_HEADER = re.compile(r"(?i)(?<![\w-])(?:bearer|basic|token) +[\w.~+/=-]{8,}")
_PLAIN = frozenset({"", "true", "false", "none", "null", "0", "1"})
_ASSIGNMENT = re.compile(r"((?:--?)?[A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
_FLAG = re.compile(r"--?[A-Za-z_][\w.-]*")


def without_secrets(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return a command line with ``$NAME`` in the place of each secret, and the names.

    A value counts as a secret by the name of its flag or variable, or by its own form. A longer word that contains one
    is replaced entirely.
    """
    names: list[str] = []
    values: dict[str, str] = {}  # secret -> its name

    def hidden(value: str, flag: str) -> str:
        form, named = _form_of(value), _names_secret(flag) and _is_value(value)
        if not (form or named):
            return value
        if value not in values:
            base = re.sub(r"[^A-Z0-9]+", "_", flag.upper()).strip("_") if named else form
            name, number = base if base[:1].isalpha() else f"SECRET_{base}", 2
            while name in names:
                name, number = f"{base}_{number}", number + 1
            values[value] = name
            names.append(name)
        return f"${values[value]}"

    shown: list[str] = []
    flag = ""
    for word in words:
        match = _ASSIGNMENT.fullmatch(word)
        if match:
            shown.append(f"{match[1]}={hidden(match[2], match[1])}")
        else:
            shown.append(hidden(word, flag))
        flag = word if _FLAG.fullmatch(word) else ""
    return shown, names


def _form_of(value: str) -> str:
    """Return the name of a variable for a value that is, or contains, a secret.

    Empty for any other, by its form.
    """
    itself = next((name for name, pattern in _FORMS if re.fullmatch(pattern, value)), "")
    if itself:
        return itself
    if inner := next((name for name, pattern in _WITHIN if pattern.search(value)), ""):
        return inner
    if any(_names_secret(name) and _is_value(text) for name, text in _INNER.findall(value)):
        return "SECRET_WORD"
    return "SECRET_HEADER" if _HEADER.search(value) else ""


def _is_value(text: str) -> bool:
    """Return whether a text may be a secret: no constant, no variable, no placeholder."""
    return text.lower() not in _PLAIN and not text.startswith(("$", "{"))


def secrets_note(names: Sequence[str]) -> str:
    """Return the line that names replaced secrets and their supply; empty without any."""
    if not names:
        return ""
    example = ", ".join(f'{name}: "env:{name}"' for name in names)
    return f"secrets of the command line are replaced by {', '.join(f'${name}' for name in names)}: " + (
        f"secrets: {{{example}}} of each host in the fleet file supplies them"
    )


def _names_secret(flag: str) -> bool:
    parts = [word for word in re.split(r"[-_.]+", flag.lower()) if word]
    if not parts:
        return False
    if parts[-1] == "token" and len(parts) > 1 and parts[-2] in _OF_A_TOKENIZER:
        return False
    return parts[-1] in _LAST or tuple(parts[-2:]) in _LAST_TWO
