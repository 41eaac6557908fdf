"""What a model does on D_r, D_u and test data.

Metrics, membership inference, the evaluator of a round.
"""
