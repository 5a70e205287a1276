"""Page docs/reference/json-lines.md, and the table of notifications.

The table is in docs/reference/fleet-file.md.
"""

from __future__ import annotations

from midstream.json_events.notifications import NOTIFICATION_FIELDS, NOTIFICATIONS
from pages.json_lines import kinds
from pages.markdown import marked, table

INTRODUCTION = """\
# JSON lines

<!-- Written by `make pages`; a test compares. -->

After this page you can read the output of every command with a program.

```sh
midstream --status --json
```

With `--json` each line of stdout is one object, in plain ASCII; its field `event` is the kind. Messages stay on stderr.
A field that does not apply is missing or `null`, and a number that is not finite (a loss that is NaN) is `null`. Ignore
fields and events that you do not know: later versions add some. A command that fails ends with a line `result` whose
`ok` is false.

Lines are written as soon as they are known. `--status --json` writes a host, and then its runs, when that host has
answered: the order is that of the answers, and a host that is down does not delay the others. Migrations and slices
come after all hosts.

| event | from | about |
|---|---|---|
"""


def page() -> str:
    """Return the page."""
    lines = [INTRODUCTION]
    lines += [
        f"| [`{event.name}`](#{event.name}) | {_modes(event.of)} | {marked(event.about)} |\n"
        for event in kinds().values()
    ]
    for event in kinds().values():
        rows = [(f"`{name}`", marked(text)) for name, text in event.fields.items()]
        lines.append(
            f"\n## {event.name}\n\n{marked(event.about)}. From {_modes(event.of)}.\n\n{table(('field', 'means'), rows)}"
        )
        lines += [f"\nFurther fields: {event.more}.\n"] if event.more else []
    return "".join(lines)


def _modes(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def notifications() -> str:
    """Return the tables of notifications."""
    kinds = table(("kind", "means"), [(f"`{kind}`", text) for kind, text in NOTIFICATIONS.items()])
    fields = table(("field", "means"), [(f"`{name}`", text) for name, text in NOTIFICATION_FIELDS.items()])
    return f"{kinds}\n{fields}"
