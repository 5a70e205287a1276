#!/bin/sh
# Accelerate stores the objects of `register_for_checkpointing` by their order, `custom_checkpoint_0.pkl` and so on, without
# a name or type. A script that registers the same objects in another order (an EMA and a counter of tokens, two
# schedules) loads each one's state into the other, without a word.
#
# Seen with torch 2.13.0, accelerate 1.15.0, numpy 2.3.5 (Python 3.11, CPU):
#
#   saved: tokens 11, ema 22
#   loaded by a script that registers ema first: tokens 22, ema 11
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 accelerate==1.15.0 numpy==2.3.5
cd "$work"
cat > finding.py <<'EOF'
from accelerate import Accelerator

class Counter:
    def __init__(self, value=0):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]

tokens, ema = Counter(11), Counter(22)
accelerator = Accelerator(cpu=True)
accelerator.register_for_checkpointing(tokens, ema)
accelerator.save_state("saved")
print(f"saved: tokens {tokens.value}, ema {ema.value}")
tokens, ema = Counter(), Counter()
accelerator = Accelerator(cpu=True)
accelerator.register_for_checkpointing(ema, tokens)
accelerator.load_state("saved")
print(f"loaded by a script that registers ema first: tokens {tokens.value}, ema {ema.value}")
assert (tokens.value, ema.value) == (22, 11)
EOF
venv/bin/python -W ignore finding.py
