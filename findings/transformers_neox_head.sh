#!/bin/sh
# A GPT-NeoX that Trainer resumes has a head of random numbers, unless the model was itself loaded from that checkpoint. The head is
# `embed_out.weight` in the file and `lm_head.weight` in the model; `from_pretrained` renames it, `resume_from_checkpoint` does not. Moments
# and everything else are loaded: the loss jumps back to that of an untrained head. A message among the others names the keys.
#
# Seen with transformers 5.24.0, torch 2.13.0, accelerate 1.15.0 (Python 3.11, CPU):
#
#   without a pause: 0.46 0.46 0.46 0.46
#   resumed:         3.69 3.68 3.67 3.66
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.24.0 torch==2.13.0 accelerate==1.15.0 numpy==2.4.6
cd "$work"
cat > finding.py <<'EOF'
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, Trainer, TrainingArguments

torch.manual_seed(5)
rows = [torch.randint(40, (16,)) for _ in range(8)]
data = [{"input_ids": row, "labels": row} for row in rows]

def losses(seed, checkpoint=None):
    torch.manual_seed(seed)
    model = GPTNeoXForCausalLM(GPTNeoXConfig(
        num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=24, vocab_size=40,
        max_position_embeddings=16,
    ))
    arguments = TrainingArguments(
        "out", max_steps=64, save_steps=60, per_device_train_batch_size=8, learning_rate=1e-2, logging_steps=1,
        use_cpu=True, report_to=[], disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.train(resume_from_checkpoint=checkpoint)
    return {each["step"]: each["loss"] for each in trainer.state.log_history if "loss" in each}

straight = losses(0)
resumed = losses(1, "out/checkpoint-60")
for name, found in (("without a pause:", straight), ("resumed:        ", resumed)):
    print(name, " ".join(f"{found[step]:.2f}" for step in range(61, 65)))
assert resumed[61] > straight[61] + 1
EOF
ACCELERATE_USE_CPU=true venv/bin/python -W ignore finding.py 2>log | grep -E "^(without|resumed)" || { cat log; exit 1; }
