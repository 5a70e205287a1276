"""Client of S3 and the services that speak its protocol, on botocore."""
