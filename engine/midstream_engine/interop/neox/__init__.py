"""Checkpoints of GPT-NeoX, which DeepSpeed wrote: optimizer state included."""
