"""Texts that users read: URLs, secrets hidden in them, and lines of the log."""
