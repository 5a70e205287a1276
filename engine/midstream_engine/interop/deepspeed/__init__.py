"""Checkpoints of DeepSpeed."""
