"""Data of other trainers, read unchanged and in their order."""
