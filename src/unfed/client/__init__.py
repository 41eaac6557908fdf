"""ClientUpdate, what one client does with a plan: objectives, optimiser, batches, the one step, measures."""
