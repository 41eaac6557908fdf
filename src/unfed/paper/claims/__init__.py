"""What the paper claims, each as a small experiment on digits with a verdict.

    times        the bound on unlearning time, without and with noise, and as a forecast
    distances    how far negation moves a layer's answers
    gradients    Jacobians behind a negated layer, and their premises
    layers       compensation, layer-wise optimality, grafting
    cka_and_spectra  CKA and the spectra of gradients
    scene        the federation and the models that claims are tried on
    trial        tries claims one after another and writes them down

A verdict is computed from what was seen: `holds`, `holds under …` or `fails`. `unfed theory` is the command.
"""
