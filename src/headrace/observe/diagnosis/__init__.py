"""What a recording says of a loader: who holds up whom, what to change, and what that would gain."""
