"""Provider of Cloud TPUs. Google's packages are imported here alone, on first use."""
