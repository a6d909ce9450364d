"""What all benchmarks share: contenders that take turns, checks of what came, tables, pictures and the page."""
