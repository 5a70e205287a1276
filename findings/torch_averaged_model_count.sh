#!/bin/sh
# The average of the weights (EMA, SWA) of `torch.optim.swa_utils.AveragedModel` is lost one step after a resume if only
# `averaged.module.state_dict()` was saved, which is the model one wants to use: the buffer `n_averaged` is 0 then, and the first
# `update_parameters` copies the live weights over the average. Save `averaged.state_dict()`.
#
# Seen with torch 2.13.0, numpy 2.3.5 (Python 3.11, CPU):
#
#   average before the save: 1.29
#   after one update with weights of 4: 1.56 from averaged.state_dict(), 4.00 from averaged.module.state_dict()
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.3.5
cd "$work"
cat > finding.py <<'EOF'
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

def model(value):
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(layer.weight, value)
    return layer

def averaged(of):
    return AveragedModel(of, multi_avg_fn=get_ema_multi_avg_fn(0.9))

live = model(0.0)
average = averaged(live)
for value in (1.0, 2.0, 3.0):
    torch.nn.init.constant_(live.weight, value)
    average.update_parameters(live)
print(f"average before the save: {average.module.weight.item():.2f}")

found = {}
for name in ("all", "module"):
    live = model(3.0)
    resumed = averaged(live)
    if name == "all":
        resumed.load_state_dict(average.state_dict())
    else:
        resumed.module.load_state_dict(average.module.state_dict())
    torch.nn.init.constant_(live.weight, 4.0)
    resumed.update_parameters(live)
    found[name] = resumed.module.weight.item()
print(f"after one update with weights of 4: {found['all']:.2f} from averaged.state_dict(), "
      f"{found['module']:.2f} from averaged.module.state_dict()")
assert abs(found["all"] - 1.561) < 1e-5 and found["module"] == 4.0
EOF
venv/bin/python -W ignore finding.py
