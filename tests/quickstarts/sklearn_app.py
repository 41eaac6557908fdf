"""NumPy and scikit-learn: arrays without names, '0' and '1'."""

from __future__ import annotations

import warnings

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from sklearn.linear_model import LogisticRegression

from quickstarts.shared import note, part, server_app
from unfed.flower import introduce, negate_arrays


def start() -> ArrayRecord:
    return ArrayRecord([np.zeros((10, 64)), np.zeros(10)])


def model(message: Message) -> LogisticRegression:
    made = LogisticRegression(max_iter=5, warm_start=True)
    made.classes_ = np.arange(10)
    made.coef_, made.intercept_ = message.content.array_records["arrays"].to_numpy_ndarrays()
    return made


def client_app() -> ClientApp:
    app = introduce(ClientApp())

    @app.train()
    def train(message: Message, context: Context) -> Message:
        note(context, "train")
        (x, y), made = part(context), model(message)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # five steps are all that it shall do
            made.fit(x, y)
        arrays = ArrayRecord([made.coef_, made.intercept_])
        return Message(
            RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": len(x)})}), reply_to=message
        )

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        note(context, "evaluate")
        (x, y), made = part(context), model(message)
        metrics = MetricRecord({"accuracy": float(made.score(x, y)), "num-examples": len(x)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


client = client_app()
server = server_app(start, FedAvg, negate_arrays("0"))
