"""Client of Google Cloud Storage, on google-cloud-storage."""
