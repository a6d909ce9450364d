"""Joins the stages: one iterator for each way of working."""
