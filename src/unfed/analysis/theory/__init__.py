"""The paper's theorems as small functions: what they say, what holds, what was seen to fail.

    distance      Theorem 2      negation moves a ReLU layer's answers farthest
    jacobian      Theorem 3      gradients behind a negated layer, the symmetry that this rests on, and its lemmas:
                                 distances between distributions, and how steep a network can be
    optimality    Theorems 4, 7  a negation that the next layer can undo, layers near optimal ones, graftings

The unlearning-time bound, without and with noise, is `unfed.analysis.bound`. No method uses anything of this: a reader
can check the paper's reasoning on numbers. `docs/equations.md` lists every equation with its function.
"""
