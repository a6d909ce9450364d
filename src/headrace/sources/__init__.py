"""Data that never end: logs, queues and sockets, read as finite spans."""
