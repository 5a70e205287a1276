#!/bin/sh
# The state of a dropout layer's seed generator is not in a `.keras` file, unlike the variables of layers and optimizer: the
# resumed run draws the masks of its first steps again. Save `layer.seed_generator.state` beside the model.
#
# Seen with keras 3.15.0 (backend jax 0.10.2), numpy 2.3.5 (Python 3.11, CPU):
#
#   optimizer's count: 12, after loading 12
#   seed generator's state: [1, 12], after loading [1, 0]
#   the loaded model draws the first masks of training again: True
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check keras==3.15.0 jax==0.10.2 jaxlib==0.10.2 numpy==2.3.5
cd "$work"
cat > finding.py <<'EOF'
import keras
import numpy as np

keras.utils.set_random_seed(0)
x = np.random.rand(32, 4).astype("float32")
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dropout(0.5, seed=1), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(), "mse")

def state(of):
    return [int(value) for value in keras.ops.convert_to_numpy(of.layers[0].seed_generator.state)]

def masked(of):
    return keras.ops.convert_to_numpy(of.layers[0](np.ones((1, 64), "float32"), training=True)).tolist()

first_mask = masked(keras.models.clone_model(model))
model.fit(x, x[:, :1], epochs=3, batch_size=8, verbose=0)
model.save("model.keras")
loaded = keras.saving.load_model("model.keras")
counts = int(model.optimizer.iterations), int(loaded.optimizer.iterations)
print(f"optimizer's count: {counts[0]}, after loading {counts[1]}")
states = state(model), state(loaded)
print(f"seed generator's state: {states[0]}, after loading {states[1]}")
again = masked(loaded) == first_mask
print(f"the loaded model draws the first masks of training again: {again}")
assert counts == (12, 12) and states == ([1, 12], [1, 0]) and again
EOF
KERAS_BACKEND=jax venv/bin/python -W ignore finding.py
