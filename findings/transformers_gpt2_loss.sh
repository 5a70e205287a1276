#!/bin/sh
# Trainer divides the loss of a GPT-2 by one target too many in each row: with rows of L tokens loss and gradients are (L - 1) / L of what the model
# itself returns, and of what other programs train with. It counts the targets that are shifted by the name of the model's loss, which for
# `GPT2LMHeadModel` is None; for `LlamaForCausalLM` it is right. A run that is moved to Trainer in the middle meets gradients of another size.
#
# Seen with transformers 5.24.0, torch 2.13.0, accelerate 1.15.0 (Python 3.11, CPU), rows of 8 tokens:
#
#   gpt2: Trainer's first loss 3.2155, the model's 3.6749: 0.8750 of it
#   llama: Trainer's first loss 3.6810, the model's 3.6810: 1.0000 of it
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3.11}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.24.0 torch==2.13.0 accelerate==1.15.0 numpy==2.4.6
cd "$work"
cat > finding.py <<'EOF'
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(5)
rows = torch.randint(40, (4, 8))
data = [{"input_ids": row, "labels": row} for row in rows]
models = {
    "gpt2": GPT2LMHeadModel(GPT2Config(
        n_layer=1, n_embd=16, n_head=2, n_positions=8, vocab_size=40, embd_pdrop=0.0, resid_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=None, eos_token_id=None,
    )),
    "llama": LlamaForCausalLM(LlamaConfig(
        num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=24, vocab_size=40,
        max_position_embeddings=8,
    )),
}
shares = {}
for name, model in models.items():
    with torch.no_grad():
        own = model(input_ids=rows, labels=rows).loss.item()
    arguments = TrainingArguments(
        "out", max_steps=1, per_device_train_batch_size=4, logging_steps=1, save_strategy="no", use_cpu=True,
        report_to=[], disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.train()
    loss = next(each["loss"] for each in trainer.state.log_history if "loss" in each)
    shares[name] = loss / own
    print(f"finding {name}: Trainer's first loss {loss:.4f}, the model's {own:.4f}: {shares[name]:.4f} of it")
assert abs(shares["gpt2"] - 7 / 8) < 1e-3 and abs(shares["llama"] - 1) < 1e-3, shares
EOF
ACCELERATE_USE_CPU=true venv/bin/python -W ignore finding.py 2>log | grep "^finding" | cut -d' ' -f2- || { cat log; exit 1; }
