"""Checkpoints of the Trainer of transformers, with optimizer and schedule."""
