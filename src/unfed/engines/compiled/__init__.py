"""The fast path of a step on a GPU: recorded, rewritten, compiled, captured.

It has kernels of its own for what libraries do slowly.
"""
