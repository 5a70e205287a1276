"""Universal checkpoints of DeepSpeed, for any number of processes."""
