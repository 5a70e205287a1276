#!/bin/sh
# With `round_robin_gradients` and two or more processes, DeepSpeed's ds_to_universal puts numbers of one parameter into
# another, without a word: a checkpoint's addresses (param_slice_mappings) follow the order of the optimizer's groups, and
# its numbers that of the round robin. In float32 the masters are the weights themselves, so the mistake can be seen. The
# ordinary checkpoint, on the same number of processes, is right.
#
# Seen with deepspeed 0.19.8, torch 2.13.0, numpy 2.3.5 (Python 3.11, CPU), on two processes; the greatest difference
# between a weight and its master in the universal checkpoint:
#
#   round_robin_gradients: false  0.weight 0.00, 0.bias 0.00, 1.weight 0.00, 1.bias 0.00
#   round_robin_gradients: true   0.weight 0.00, 0.bias 0.66, 1.weight 0.68, 1.bias 0.00
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
pip="$work/venv/bin/pip --quiet --disable-pip-version-check install"
$pip torch==2.13.0 numpy==2.3.5 setuptools==80.9.0 wheel==0.45.1 ninja==1.13.0
DS_BUILD_OPS=0 $pip --no-build-isolation deepspeed==0.19.8
cd "$work"
cat > train.py <<'EOF'
import os
import sys

os.environ |= {"DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0", "LOCAL_SIZE": "1"}
import deepspeed
import torch

sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # gloo will do; it would be compiled first
deepspeed.init_distributed("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 3))
config = {
    "train_batch_size": 2, "zero_optimization": {"stage": 2, "round_robin_gradients": sys.argv[1] == "true"},
    "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, "steps_per_print": 10**9,
}
engine = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters(), 0.01), config=config)[0]
engine.backward(engine(torch.ones(1, 4)).sum())
engine.step()
engine.save_checkpoint(sys.argv[1], tag="a")
EOF
cat > finding.py <<'EOF'
import os
import subprocess
import sys

os.environ["DS_ACCELERATOR"] = "cpu"
import torch

largest = {}
for setting in ("false", "true"):
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                    "train.py", setting], **quiet)
    subprocess.run([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder", f"{setting}/a",
                    "--output_folder", f"universal-{setting}", "--inject_missing_state",
                    "--num_extract_workers", "1", "--num_merge_workers", "1"], **quiet)
    weights = torch.load(f"{setting}/a/mp_rank_00_model_states.pt", weights_only=False)["module"]
    differences = {}
    for name, weight in weights.items():
        master = torch.load(f"universal-{setting}/zero/{name}/fp32.pt", weights_only=False)["param"]
        differences[name] = (master.reshape(weight.shape) - weight).abs().max().item()
    print(f"round_robin_gradients: {setting:6}", ", ".join(f"{name} {value:.2f}" for name, value in differences.items()))
    largest[setting] = max(differences.values())
assert largest["false"] == 0.0
assert largest["true"] > 0.1
EOF
venv/bin/python -W ignore finding.py
