"""Byte ranges fetched ahead of those who need them, in this process or in an I/O process that workers share."""
