"""Provider of TPU slices on Compute Engine: single machines, and groups of machines with a topology."""
