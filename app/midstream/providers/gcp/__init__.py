"""Machines of Google Cloud: TPU slices and Compute Engine."""
