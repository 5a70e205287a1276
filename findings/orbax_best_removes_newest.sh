#!/bin/sh
# With `best_fn`, Orbax's CheckpointManager keeps the best `max_to_keep` checkpoints and removes the newest ones where those are
# worse. `latest_step()`, from which scripts resume, is then a step long before the last save, although every `save`
# returned True: the updates since are lost. Keep a second manager for the newest one.
#
# Seen with orbax-checkpoint 0.12.8, jax 0.10.2, numpy 2.3.5 (Python 3.11, CPU):
#
#   saved 1 2 3 4 5: all True; kept 2 3; latest_step() of a new process: 3
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check orbax-checkpoint==0.12.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.3.5
cd "$work"
cat > finding.py <<'EOF'
import os

import numpy as np
import orbax.checkpoint as ocp

def manager():
    options = ocp.CheckpointManagerOptions(max_to_keep=2, best_fn=lambda metrics: metrics["accuracy"], best_mode="max")
    return ocp.CheckpointManager(os.path.abspath("checkpoints"), options=options)

first = manager()
accuracies = {1: 0.1, 2: 0.9, 3: 0.8, 4: 0.5, 5: 0.4}
saved = [
    first.save(step, args=ocp.args.StandardSave({"w": np.full(2, step)}), metrics={"accuracy": value})
    for step, value in accuracies.items()
]
first.wait_until_finished()
resumed = manager()
print("saved", *accuracies, end=f": all {all(saved)}; kept ")
print(*resumed.all_steps(), end=f"; latest_step() of a new process: {resumed.latest_step()}\n")
assert all(saved) and list(resumed.all_steps()) == [2, 3] and resumed.latest_step() == 3
EOF
venv/bin/python -W ignore finding.py
