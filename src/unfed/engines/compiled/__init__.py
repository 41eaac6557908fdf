"""The fast path of a step on a GPU: recorded, rewritten, compiled, captured; kernels for what libraries do slowly."""
