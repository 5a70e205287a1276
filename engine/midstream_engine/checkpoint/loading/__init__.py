"""Loading of checkpoints: list, verify, restore."""
