"""The fast path of a step on a GPU: recorded, rewritten, compiled, captured.

Kernels for what libraries do slowly.
"""
