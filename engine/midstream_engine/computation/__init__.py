"""Programs compiled for a run: setup, train step, reference losses; their cache."""
