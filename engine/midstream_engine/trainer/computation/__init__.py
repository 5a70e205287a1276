"""Programs compiled for a run: its setup, train step and reference losses, and their cache."""
