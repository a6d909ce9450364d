"""A log as finite spans: read once, in the I/O process, and laid into memory that processes share."""
