"""What was delivered, as a small record that can be saved, checked, merged over ranks and loaded elsewhere."""
