#!/bin/sh
# `flax.serialization.from_bytes` takes the tree from the target, and shape and type of each array from the file: neither is
# compared. A run whose script has another width, or computes in bfloat16, goes on with the arrays of the checkpoint
# without a message. Compare `jax.eval_shape` of both before training.
#
# Seen with flax 0.12.8, jax 0.10.2, numpy 2.3.5 (Python 3.11, CPU):
#
#   target (4,) bfloat16, checkpoint (8,) float32: restored (8,) float32
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check flax==0.12.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.3.5
cd "$work"
cat > finding.py <<'EOF'
import jax.numpy as jnp
from flax import serialization

saved = {"w": jnp.ones((8,), jnp.float32)}
target = {"w": jnp.zeros((4,), jnp.bfloat16)}
restored = serialization.from_bytes(target, serialization.to_bytes(saved))
print(f"target {target['w'].shape} {target['w'].dtype}, checkpoint {saved['w'].shape} {saved['w'].dtype}: "
      f"restored {restored['w'].shape} {restored['w'].dtype}")
assert restored["w"].shape == (8,) and restored["w"].dtype == "float32"
EOF
venv/bin/python -W ignore finding.py
