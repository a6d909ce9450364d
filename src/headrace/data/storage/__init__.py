"""Data that do not lie on this machine yet: how they come here, whole and checked."""
