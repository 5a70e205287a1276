"""Distributed checkpoints of torch (DCP) with torchtitan's names for its Llama."""
