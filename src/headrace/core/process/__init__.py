"""The running process: what it is, what it may use, what it waits for, and how it ends."""
