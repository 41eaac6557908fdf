"""θ, the model.

It is a dictionary of tensors; here are the module as a pure function over it, its layers, files and networks.
"""
