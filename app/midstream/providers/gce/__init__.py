"""Provider of TPU slices on Compute Engine: machines, and groups with a topology."""
