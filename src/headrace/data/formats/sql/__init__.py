"""Tables of SQL databases as stored samples."""
