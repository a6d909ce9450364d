"""What is chosen by measuring: the backend and the number of workers."""
