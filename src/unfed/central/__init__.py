"""One model, one data set: unlearning for people with their own training code.

    result = unfed.unlearn(model, retain=(x, y), forget=(x_u, y_u), test=(x_t, y_t), method="not")
    result.model, result.before, result.after, result.report(), print(result)

The machinery is the federation's: one client holds everything, no message is sent, and the optimiser goes on from
epoch to epoch.
"""

from unfed.central.call import unlearn
from unfed.central.result import Result

__all__ = ["Result", "unlearn"]
