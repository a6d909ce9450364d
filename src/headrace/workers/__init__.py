"""Who makes batches: the calling thread, worker threads or worker processes."""
