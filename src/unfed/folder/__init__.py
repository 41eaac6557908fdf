"""The run folder: one documented, versioned layout.

What it holds, what still carries whom, and how that is taken away.
"""
