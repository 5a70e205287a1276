"""The checkpoint on disk: content-addressed, written once, readable on any mesh.

docs/checkpoint-format.md is the contract.
The modules are imported one by one (``from midstream_engine.checkpoint.saving.save import save_checkpoint``), so that
listing and verifying checkpoints needs no jax.
"""
