"""Checkpoints: content-addressed, written once, readable on any mesh.

docs/reference/checkpoint-format.md specifies the format. Import modules one by one
(``from midstream_engine.checkpoint.saving.save import begin_save``): listing and verifying checkpoints need no
jax.
"""
