"""Program that trains a language model from a configuration file.

``python -m midstream_engine.train --config_path FILE [--SECTION.KEY VALUE ...]``

The configuration is read before jax is imported, so that an error in it is reported within a second. Where an attempt
has several processes, ``--trainer.distributed`` or the environment gives each its number (``config/distributed.py``).
Exit codes: 0 finished, or stopped with everything saved; 1 failed; 2 invalid configuration; 7 the fence has another
owner; 128 + N ended by signal N without saving.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from midstream_engine.runtime.host_memory import keep_host_memory
from midstream_engine.signals import Signals


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one process of an attempt; returns the exit code."""
    signals = Signals()
    signals.install()
    # Imported late: the import takes half a second, in which signals may arrive.
    from midstream_engine.attempt.attempt_process import run_process

    try:
        return run_process(sys.argv[1:] if arguments is None else arguments, signals)
    finally:
        signals.ignore()


if __name__ == "__main__":
    keep_host_memory()
    sys.exit(main())
