"""Data sets on disk and from the network: catalogue, formats, downloads with checksums."""
