#!/bin/sh
# `ReduceLROnPlateau` counts the epochs without improvement in the callback, which no file of Keras has: after a resume the
# patience begins again, and the rate is reduced later than in an undisturbed run. A run that is interrupted more often
# than its patience never reduces it.
#
# Seen with keras 3.15.0 (backend jax 0.10.2), numpy 2.3.5 (Python 3.11, CPU):
#
#   undisturbed:          1e-03 1e-03 1e-03 1e-03 1e-04 1e-04 1e-04 1e-04
#   resumed at epoch 3:   1e-03 1e-03 1e-03 1e-03 1e-03 1e-03 1e-03 1e-04
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check keras==3.15.0 jax==0.10.2 jaxlib==0.10.2 numpy==2.3.5
cd "$work"
cat > finding.py <<'EOF'
import keras
import numpy as np

x = np.ones((8, 1), "float32")

class Flat(keras.callbacks.Callback):
    """Set a watched value that never improves."""

    def on_epoch_end(self, epoch, logs=None):
        logs["flat"] = 1.0

def train(model, rates, first, last):
    plateau = keras.callbacks.ReduceLROnPlateau("flat", mode="min", factor=0.1, patience=4)
    record = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: rates.append(float(model.optimizer.learning_rate))
    )
    model.fit(x, x, initial_epoch=first, epochs=last, verbose=0, callbacks=[Flat(), plateau, record])

def fresh():
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    return model

straight, resumed = [], []
train(fresh(), straight, 0, 8)
model = fresh()
train(model, resumed, 0, 3)
model.save("newest.keras")
train(keras.saving.load_model("newest.keras"), resumed, 3, 8)
print("undisturbed:         ", *(f"{rate:.0e}" for rate in straight))
print("resumed at epoch 3:  ", *(f"{rate:.0e}" for rate in resumed))
assert np.allclose(straight, [1e-3] * 4 + [1e-4] * 4) and np.allclose(resumed, [1e-3] * 7 + [1e-4])
EOF
KERAS_BACKEND=jax venv/bin/python -W ignore finding.py
