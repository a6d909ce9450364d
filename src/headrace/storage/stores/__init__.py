"""Object stores by URL: S3, Google Cloud Storage, Azure, HTTP, and what fsspec knows; credentials and failures."""
