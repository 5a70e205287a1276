#!/bin/sh
# Orbax's CheckpointManager saves no step that is not above the newest one in its directory: `save` returns False and warns of
# nothing. A run that goes on from an earlier checkpoint loses all saves up to the old newest one, and the directory has
# checkpoints of both branches: a crash resumes the one that was given up. Delete the later checkpoints before training.
#
# Seen with orbax-checkpoint 0.12.8, jax 0.10.2, numpy 2.3.5 (Python 3.11, CPU):
#
#   checkpoints 10 20 30; resumed from 10
#   save(20): False, save(25): False, save(30): False, save(40): True
#   newest below 40 is 30, of the first branch: True
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check orbax-checkpoint==0.12.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.3.5
cd "$work"
cat > finding.py <<'EOF'
import os
import warnings

import numpy as np
import orbax.checkpoint as ocp

warnings.simplefilter("ignore")
STATE, LIKE = ocp.args.StandardSave, ocp.args.StandardRestore

def manager():
    return ocp.CheckpointManager(os.path.abspath("checkpoints"), options=ocp.CheckpointManagerOptions(max_to_keep=10))

first = manager()
for step in (10, 20, 30):
    first.save(step, args=STATE({"w": np.full(2, step)}))
first.wait_until_finished()
print("checkpoints", *first.all_steps(), end="; resumed from 10\n")
resumed = manager()
resumed.restore(10, args=LIKE({"w": np.zeros(2, int)}))
saved = {step: resumed.save(step, args=STATE({"w": np.full(2, -step)})) for step in (20, 25, 30, 40)}
resumed.wait_until_finished()
print(", ".join(f"save({step}): {done}" for step, done in saved.items()))
stale = bool(resumed.restore(30, args=LIKE({"w": np.zeros(2, int)}))["w"][0] == 30)
print(f"newest below 40 is 30, of the first branch: {stale}")
assert list(saved.values()) == [False, False, False, True] and stale
EOF
venv/bin/python -W ignore finding.py
