"""Checkpoints of Levanter, with the optimizer's state."""
