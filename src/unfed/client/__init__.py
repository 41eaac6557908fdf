"""ClientUpdate, what one client does with a plan.

Here are objectives, the optimiser, batches, the one step and measures.
"""
