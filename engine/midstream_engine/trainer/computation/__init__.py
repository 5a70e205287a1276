"""What is compiled for a run: its setup, train step and reference losses, and the cache of compiled programs."""
