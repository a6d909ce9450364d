"""Clusters of machines: the connection to Ray, and a user's code on its way to other machines."""
