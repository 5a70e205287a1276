"""Where checkpoints lie when no host holds them."""
