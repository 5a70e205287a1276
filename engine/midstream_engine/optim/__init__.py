"""The learning-rate schedule and AdamW."""
