"""Runs of other trainers.

A driver speaks the engine's protocol on behalf of a trainer that it starts and stops.

Standard library only, Python 3.8. `driver` is started in place of the engine, writes the same records of an attempt,
and obeys the same commands, so that everything that watches and migrates runs needs no second way for them. `run_file`
is the schema of their ``run.yaml``; the app imports it.
"""
