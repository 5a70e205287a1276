"""Token caches: build, open, share with a bucket."""
