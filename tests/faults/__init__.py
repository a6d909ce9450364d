"""Bad samples: who is to blame, what takes their place, where it is written."""
