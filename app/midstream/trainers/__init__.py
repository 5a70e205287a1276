"""Other trainers: run files, defaults, division of their batch, start of runs."""
