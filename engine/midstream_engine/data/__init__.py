"""Text to batches: tokenizers, the token cache, the stateless order. Nothing here imports jax."""
