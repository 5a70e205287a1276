"""Text sources and their formats.

The sources are local files, HTTP, buckets, and datasets on Hugging Face.
"""
