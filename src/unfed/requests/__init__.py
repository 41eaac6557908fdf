"""Deletion requests: what is asked, where it stands, how it is served, and what its model must show."""
