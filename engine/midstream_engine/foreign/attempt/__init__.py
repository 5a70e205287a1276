"""An attempt of another trainer's run on one node."""
