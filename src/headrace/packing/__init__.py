"""Packs documents into rows: which go together, and how long the rows are. Pure arithmetic on lengths."""
