"""Undoing: how much of what was forgotten comes back, and how easily.

    flip         the public inverse of the perturbation                                        no data, no training
    lift         the head's bias of a forgotten class raised as far as the others allow         no data, no training
    realign      layers turned back or drawn afresh and fitted on a few retained rows; mixing matrices fitted
    resurface    some more passes over retained data alone
    relearn      a few forgotten rows mixed in at a low rate
    triggers     a planted backdoor taught again with five stamped rows of those who stay
    inside       what the features carry: θ*'s head stitched or grafted onto them, linear probes of them
    path         distance, angle and loss peak to θ*, to perturb(θ*), to Retrain
    difference   what the models before and after tell together about the leaver

Each number stands beside the same number for Retrain and for θ*, made under the same budget: what Retrain gives away
too is no memory. All are pure functions of params, a functional model and views of data (`scene.Scene`).
"""
