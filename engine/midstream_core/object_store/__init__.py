"""Objects in buckets (Google Cloud Storage, S3), for the engine, app and hosts.

`open_bucket.open_bucket` returns the client of a URL; `bucket_client.BucketClient` is the interface, which `gcs` and
`s3` implement. No module imports jax or numpy, and a service's own package is imported with the first client, so these
modules can be sent to a host.
"""
