"""What is delivered: the loader, its options, its iterator and its state."""
