"""What a population of models tells that one model cannot.

    attacks      U-LiRA, RMIA, IAM · SVC efficacy and the entropy attack, under their own names
    distances    KLoM, the score of the NeurIPS 2023 challenge, prediction agreement
    how sure     ROC at low FPR, intervals over models and rows, permutation tests, a verdict in words

All are pure functions over arrays: logits [models, rows, classes], labels [rows]. `judge` calls them on a population.
"""

from unfed.measures.population.intervals import Resampling
from unfed.measures.population.judge import ForgottenRows, Judge, VerdictAnswer, judge, verdict

__all__ = ["ForgottenRows", "Judge", "Resampling", "VerdictAnswer", "judge", "verdict"]
