#!/bin/sh
# A run that is resumed to train longer keeps the old horizon of its schedule without a word: `T_max` of CosineAnnealingLR
# and `total_iters` of LinearLR are in the scheduler's state and win over those of the script. The cosine's rate rises
# again after the old end, the linear one stays 0. LambdaLR stores no function: there the script's horizon counts.
#
# Seen with torch 2.13.0, numpy 2.3.5 (Python 3.11, CPU):
#
#   cosine: resumed 0.02 0.00 0.02 0.10 0.21 0.35 0.50 0.65, the script's schedule 0.58 0.50 0.42 0.35 0.27 0.21 0.15 0.10
#   linear: resumed 0.10 0.00 0.00 0.00 0.00 0.00 0.00 0.00, the script's schedule 0.55 0.50 0.45 0.40 0.35 0.30 0.25 0.20
#   lambda: resumed 0.55 0.50 0.45 0.40 0.35 0.30 0.25 0.20, the script's schedule 0.55 0.50 0.45 0.40 0.35 0.30 0.25 0.20
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.3.5
cd "$work"
cat > finding.py <<'EOF'
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR

MAKE = {
    "cosine": lambda of, steps: CosineAnnealingLR(of, T_max=steps),
    "linear": lambda of, steps: LinearLR(of, 1.0, 0.0, total_iters=steps),
    "lambda": lambda of, steps: LambdaLR(of, lambda step: 1 - step / steps),
}

def optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)

def rates(of, schedule, steps):
    found = []
    for _ in range(steps):
        of.step()
        schedule.step()
        found.append(of.param_groups[0]["lr"])
    return found

def text(values):
    return " ".join(f"{abs(value):.2f}" for value in values)

resumed, script = {}, {}
for name, make in MAKE.items():
    of = optimizer()
    schedule = make(of, 10)
    rates(of, schedule, 8)
    saved = of.state_dict(), schedule.state_dict()
    of = optimizer()
    schedule = make(of, 20)
    of.load_state_dict(saved[0])
    schedule.load_state_dict(saved[1])
    resumed[name] = rates(of, schedule, 8)
    of = optimizer()
    script[name] = rates(of, make(of, 20), 16)[8:]
    print(f"{name}: resumed {text(resumed[name])}, the script's schedule {text(script[name])}")
assert resumed["cosine"][7] > 0.6 > 0.1 > script["cosine"][7]
assert resumed["linear"][2:] == [0.0] * 6 and script["linear"][7] > 0.19
assert all(abs(a - b) < 1e-9 for a, b in zip(resumed["lambda"], script["lambda"]))
EOF
venv/bin/python -W ignore finding.py
