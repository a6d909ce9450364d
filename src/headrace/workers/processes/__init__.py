"""Worker processes: started, given work, watched, replaced."""
