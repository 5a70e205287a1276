"""JSON lines of --json as dataclasses, and notifications of `on_event:`.

docs/reference/json-lines.md is made from their fields and docstrings. Phases, stages, commands and notes of a migration
are lines of its journal.
"""
