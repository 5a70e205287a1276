"""From text to batches: tokenizers, token caches, the stateless data order. Nothing here imports jax."""
