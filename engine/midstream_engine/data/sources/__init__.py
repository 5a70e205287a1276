"""Text sources: local files, HTTP, buckets, datasets on Hugging Face, and their formats."""
