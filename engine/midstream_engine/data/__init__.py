"""Path from text to batches: tokenizers, token caches, stateless data order.

Nothing here imports jax.
"""
