"""Cloud TPU. Everything of Google's is imported here, and only when it is used."""
