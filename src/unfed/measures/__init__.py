"""What a model does on D_r, D_u and test data.

Here are metrics, membership inference and the evaluator of a round.
"""
