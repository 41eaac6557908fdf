"""Data sets on disk and from the network.

Here are the layouts, the catalogue, downloads with checksums, and where data lies.
"""
