#!/bin/sh
# `ModelCheckpoint(save_best_only=True)` has its best value in the callback alone. After a resume it begins at infinity, so the
# first epoch overwrites the best model of the run with whatever it has. Pass the old value as
# `initial_value_threshold`.
#
# Seen with keras 3.15.0 (backend jax 0.10.2), numpy 2.3.5 (Python 3.11, CPU):
#
#   best file of the first run: value 1, of the resumed run: value 5
#   with initial_value_threshold=1: value 1
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check keras==3.15.0 jax==0.10.2 jaxlib==0.10.2 numpy==2.3.5
cd "$work"
cat > finding.py <<'EOF'
import keras
import numpy as np

x = np.zeros((1, 1), "float32")

class Value(keras.callbacks.Callback):
    """Set the watched value of each epoch, and write it into the model."""

    def __init__(self, values):
        super().__init__()
        self.values = values

    def on_epoch_end(self, epoch, logs=None):
        logs["value"] = self.values[epoch]
        self.model.layers[0].set_weights([np.full((1, 1), self.values[epoch], "float32")])

def train(model, values, first, **options):
    best = keras.callbacks.ModelCheckpoint("best.keras", monitor="value", mode="min", save_best_only=True, **options)
    model.fit(x, x, initial_epoch=first, epochs=len(values), verbose=0, callbacks=[Value(values), best])
    return float(keras.saving.load_model("best.keras").layers[0].get_weights()[0][0, 0])

def fresh():
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(1e-9), "mse")
    return model

model = fresh()
before = train(model, [3, 1, 2], 0)
model.save("newest.keras")
after = train(keras.saving.load_model("newest.keras"), [3, 1, 2, 5], 3)
print(f"best file of the first run: value {before:g}, of the resumed run: value {after:g}")
model = fresh()
train(model, [3, 1, 2], 0)
held = train(model, [3, 1, 2, 5], 3, initial_value_threshold=before)
print(f"with initial_value_threshold=1: value {held:g}")
assert (before, after, held) == (1, 5, 1)
EOF
KERAS_BACKEND=jax venv/bin/python -W ignore finding.py
