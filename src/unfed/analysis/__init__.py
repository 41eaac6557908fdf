"""The paper's measurements on models that are already there.

    activations     what the layers of a model answer on some rows
    cka             how alike two models' answers are, layer by layer
    spectrum        into how few directions gradients go
    bound           a lower bound on the time that unlearning takes
    gradient_noise  the noise of mini-batches, which the bound leaves out or takes in

Nothing here changes a run. Whether a negated layer is still optimal is asked by a method, `unfed.methods.nr_freeze`.
"""
