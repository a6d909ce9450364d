"""From one stored form to another, and whether stored data are sound."""
