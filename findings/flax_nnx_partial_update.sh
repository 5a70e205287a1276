#!/bin/sh
# `nnx.update` with a state that lacks variables of the model leaves those as they are, without a message: a checkpoint that
# was filtered, or saved before a layer was added, is "restored" and that layer begins with fresh values. Compare the paths
# of both states first.
#
# Seen with flax 0.12.8, jax 0.10.2, numpy 2.3.5 (Python 3.11, CPU):
#
#   bias restored: True, kernel restored: False, error: none
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check flax==0.12.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.3.5
cd "$work"
cat > finding.py <<'EOF'
import jax.numpy as jnp
from flax import nnx

trained = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
trained.bias.value = jnp.full(2, 7.0)
state = nnx.state(trained)
del state["kernel"]
resumed = nnx.Linear(2, 2, rngs=nnx.Rngs(1))
fresh = jnp.array(resumed.kernel.value)
nnx.update(resumed, state)
bias = bool((resumed.bias.value == 7.0).all())
kernel = not bool((resumed.kernel.value == fresh).all())
print(f"bias restored: {bias}, kernel restored: {kernel}, error: none")
assert bias and not kernel
EOF
venv/bin/python -W ignore finding.py
