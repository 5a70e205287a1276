#!/bin/sh
# `optax.inject_hyperparams` keeps a hyperparameter that is a number in the optimizer's state. A resume restores it over the
# script's number without a word: a rate that was changed in the script has no effect. Of a schedule only the count is
# stored, so there the script's schedule counts; so does the number of a plain `optax.sgd`. Set
# `state.hyperparams["learning_rate"]` after the restore.
#
# Seen with optax 0.2.8, jax 0.10.2, numpy 2.3.5 (Python 3.11, CPU):
#
#   script's rate 0.01 after a resume: plain 0.010, injected number 0.100, injected schedule 0.010
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check optax==0.2.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.3.5
cd "$work"
cat > finding.py <<'EOF'
import jax.numpy as jnp
import optax

MAKE = {
    "plain": lambda rate: optax.sgd(rate),
    "injected number": lambda rate: optax.inject_hyperparams(optax.sgd)(learning_rate=rate),
    "injected schedule": lambda rate: optax.inject_hyperparams(optax.sgd)(learning_rate=lambda count: rate),
}
gradient = {"w": jnp.ones(1)}
found = {}
for name, make in MAKE.items():
    state = make(0.1).init(gradient)
    for _ in range(3):
        _, state = make(0.1).update(gradient, state)
    update, _ = make(0.01).update(gradient, state)  # the script's rate has changed
    found[name] = -float(update["w"][0])
print("script's rate 0.01 after a resume:", ", ".join(f"{name} {rate:.3f}" for name, rate in found.items()))
assert abs(found["injected number"] - 0.1) < 1e-6
assert abs(found["plain"] - 0.01) < 1e-6 and abs(found["injected schedule"] - 0.01) < 1e-6
EOF
venv/bin/python -W ignore finding.py
