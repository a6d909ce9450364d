"""Datasets to try things with, downloaded or generated, whole and checked."""
