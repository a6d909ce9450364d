"""Packing into a bucket: what is uploaded when, who else packs there, and when readers may see it."""
