"""ClientUpdate, what one client does with a plan.

Objectives, optimiser, batches, the one step, measures.
"""
