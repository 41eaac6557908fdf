"""θ, the model: a dictionary of tensors, the module as a pure function over it, its layers, files and networks."""
