#!/bin/sh
# DeepSpeed's ZeRO 3 gives every group of parameters the settings of the first one when it loads a universal checkpoint:
# learning rate and weight decay of the other groups are lost without a word, and stay so unless a scheduler sets the
# rate again; weight decay is never set again. The subgroups share one count of updates, so with two of them each update
# counts twice, and Adam's bias correction runs ahead. An ordinary checkpoint of ZeRO 3, and a universal one of ZeRO 1,
# keep both.
#
# Seen with deepspeed 0.19.8, torch 2.13.0, numpy 2.3.5 (Python 3.11, CPU); a checkpoint after one update:
#
#   script:              (0.1, 0.1) (0.01, 0.0)
#   ZeRO 1, ordinary:    (0.1, 0.1) (0.01, 0.0); the second update is number [2]
#   ZeRO 1, universal:   (0.1, 0.1) (0.01, 0.0); the second update is number [2]
#   ZeRO 3, ordinary:    (0.1, 0.1) (0.01, 0.0); the second update is number [2]
#   ZeRO 3, universal:   (0.1, 0.1) (0.1, 0.1); the second update is number [3]
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
pip="$work/venv/bin/pip --quiet --disable-pip-version-check install"
$pip torch==2.13.0 numpy==2.3.5 setuptools==80.9.0 wheel==0.45.1 ninja==1.13.0
DS_BUILD_OPS=0 $pip --no-build-isolation deepspeed==0.19.8
cd "$work"
cat > finding.py <<'EOF'
import os
import subprocess
import sys

os.environ |= {
    "DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0", "LOCAL_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29577",
}
import deepspeed
import torch

sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # gloo will do; it would be compiled first
deepspeed.init_distributed("gloo")
WRITTEN = [(0.1, 0.1), (0.01, 0.0)]

def engine_of(stage, universal):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    groups = [{"params": [value], "lr": rate, "weight_decay": decay}
              for value, (rate, decay) in zip((model.weight, model.bias), WRITTEN)]
    config = {
        "train_batch_size": 2, "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False, "steps_per_print": 10**9, "checkpoint": {"load_universal": universal},
    }
    return deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(groups), config=config)[0]

def settings(engine):
    return [(group["lr"], group["weight_decay"]) for group in engine.optimizer.param_groups]

def update(engine):
    engine.backward(engine(torch.ones(2, 4)).sum())
    engine.step()
    return sorted({int(state["step"]) for state in engine.optimizer.optimizer.state.values()})

found, counts = {"script": WRITTEN}, {}
for stage in (1, 3):
    engine = engine_of(stage, False)
    update(engine)
    engine.save_checkpoint(f"stage{stage}", tag="a")
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder", f"stage{stage}/a",
               "--output_folder", f"universal{stage}/a", "--inject_missing_state",
               "--num_extract_workers", "1", "--num_merge_workers", "1"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for universal, folder in ((False, f"stage{stage}"), (True, f"universal{stage}")):
        engine = engine_of(stage, universal)
        engine.load_checkpoint(folder, tag="a")
        name = f"ZeRO {stage}, {'universal' if universal else 'ordinary'}"
        found[name] = settings(engine)
        counts[name] = update(engine)
for name, groups in found.items():
    count = f"; the second update is number {counts[name]}" if name in counts else ""
    print(f"{name + ':':20} {' '.join(map(str, groups))}{count}")
assert counts.pop("ZeRO 3, universal") == [3]
assert all(count == [2] for count in counts.values())
assert found.pop("ZeRO 3, universal") == [WRITTEN[0]] * 2
assert all(groups == WRITTEN for groups in found.values())
EOF
venv/bin/python -W ignore finding.py > output.txt 2> errors.txt || { tail -5 errors.txt >&2; exit 1; }
grep -v '\[INFO\]\|\[WARNING\]' output.txt
