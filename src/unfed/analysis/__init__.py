"""Why negation works: the paper's measurements on models that are already there.

    activations     what the layers of a model answer on some rows
    cka             how alike two models' answers are, layer by layer
    spectrum        into how few directions gradients go
    bound           a lower bound on the time that unlearning takes
    optimality      is a negated layer still optimal? the paper's NR-Freeze
    theory          the theorems behind it, as functions that can be checked

Nothing here trains or changes a run; `optimality` is a method that a run can be given by its path.
"""
