"""θ, the model.

A dictionary of tensors, the module as a pure function over it, its layers, files and networks.
"""
