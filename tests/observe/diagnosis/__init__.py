"""Tests of what is said of a loader, and of what that is computed from."""
