"""Bad samples: what they are, what becomes of them, and where it is written down."""
