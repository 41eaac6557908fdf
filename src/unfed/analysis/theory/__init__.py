"""The paper's theorems as small functions: what they say, what holds, what was seen to fail.

    noise           Theorem 5   the unlearning-time bound under noise; the term that its proof drops
    distance        Theorem 2   negation moves a ReLU layer's answers farthest
    transport       Lemmas      total variation and Wasserstein distance, and what a function does to them
    chains          Lemmas      a network as a partial order of layers: how steep can it be?
    jacobian        Theorem 3   gradients behind a negated layer, and the symmetry that this rests on
    compensation    Theorem 4   the next layer can undo a negation, for some activations
    optimum         Theorem 7   how far a layer is from an optimal one, and maps that keep optimal layers optimal
    grafting        Definitions co-adapted layers, and models made of several models' layers

The unlearning-time bound itself is `unfed.analysis.bound`. Nothing here is used by a method: a reader can
check the paper's reasoning on numbers. `docs/equations.md` lists every equation with its function.
"""
