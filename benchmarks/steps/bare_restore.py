"""Import what the engine imports and restore a run's newest checkpoint: ``PYTHON bare_restore.py RUN FLAGS...``.

stdout: one JSON line, the moment (UTC seconds) when everything was imported and the seconds that restoring took.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parents[2] / "engine")]


def main() -> None:
    from midstream_engine.attempt.attempt_process import _import_run

    _import_run()  # what the engine imports before it restores, and as it imports it
    import jax

    from midstream_core import records
    from midstream_core.attempt.save_fence import read_fence
    from midstream_engine.checkpoint.loading.checkpoint_list import newest_complete
    from midstream_engine.checkpoint.loading.restore import restore_checkpoint
    from midstream_engine.computation.setup import make_plan
    from midstream_engine.config import load_config

    jax.devices()
    imported = time.time()
    config = load_config(sys.argv[2:]).config
    paths = records.RunPaths(config.trainer.resolved_root(), sys.argv[1])
    name = newest_complete(paths, read_fence(paths))
    assert name is not None
    plan = make_plan(config)
    began = time.perf_counter()
    restored = restore_checkpoint(paths.checkpoint(name), plan.template, plan.shardings)
    jax.block_until_ready(restored.tree)
    print(json.dumps({"imported": imported, "restore": time.perf_counter() - began}))


if __name__ == "__main__":
    main()
