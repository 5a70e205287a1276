"""Packages that the engine does not use are imported when they are used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.engines.engine_runs import environment

SCRIPT = """
import json, sys
from midstream_engine.attempt.attempt_process import _import_run
_import_run()
deferred = ("aqt", "flax", "equinox.nn", "jax.scipy.stats", "jax.experimental.pallas.ops.tpu.megablox",
            "optax.contrib")
before = [name for name in deferred if name in sys.modules]
import equinox, haliax.nn.linear, haliax.quantization, jax, optax
quantized = type(haliax.quantization.Int8DotGeneralOp.init().cfg)
layer = equinox.nn.Dropout(0.5)
print(json.dumps({
    "before": before,
    "quantization": f"{quantized.__module__}.{quantized.__name__}",
    "inference": equinox.tree_inference(layer, True).inference,
    "contributed": type(optax.contrib.muon(0.1)).__name__,
    "logarithm": float(optax.multi_normal(0.0, 0.0).log_prob(1.0)),
    "kernel": jax.eval_shape(
        haliax.nn.linear.gmm, *(jax.ShapeDtypeStruct(shape, "float32") for shape in ((128, 128), (2, 128, 128))),
        jax.ShapeDtypeStruct((2,), "int32"),
    ).shape,
    "modules": [sys.modules["equinox.nn"] is equinox.nn, hasattr(sys.modules["aqt.jax.v2.config"], "__file__")],
}))
"""


def test_deferred_packages_are_imported_when_they_are_used(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment(tmp_path, 1), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("before") == []
    assert round(found.pop("logarithm"), 4) == -1.4189
    assert found == {
        "quantization": "aqt.jax.v2.aqt_dot_general.DotGeneral", "inference": True,
        "contributed": "GradientTransformationExtraArgs", "kernel": [128, 128],
        "modules": [True, True],
    }  # fmt: skip
