"""Data sets on disk and from the network.

Layouts, the catalogue, downloads with checksums, where data lies.
"""
