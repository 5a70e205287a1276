"""States of an engine process, and its exit codes."""

STARTING = "starting"
COMPILING = "compiling"
RESTORING = "restoring"
WAITING = "waiting"
REPLAYING = "replaying"
TRAINING = "training"
SAVING = "saving"
ON_STANDBY = "standby"
STOPPING = "stopping"
STOPPED = "stopped"
FINISHED = "finished"
FAILED = "failed"

ENDED = frozenset({STOPPED, FINISHED, FAILED})

# Exit codes of ``python -m midstream_engine.train``.
EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_CONFIG = 2
EXIT_FENCED = 7
EXIT_SIGNAL = 128  # plus the number of the signal that ended it without saving
