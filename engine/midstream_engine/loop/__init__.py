"""The training loop: updates, requests at their boundaries, saves, profile."""
