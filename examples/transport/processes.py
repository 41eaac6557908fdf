"""A federation of plain processes on this machine: three workers, one of which leaves."""

import sys

from unfed.remote.server import run
from unfed.remote.sockets import Workers

what = {"run-folder": sys.argv[1], "forget-clients": "1", "min-nodes": 3, "wait-seconds": 120.0}
sizes = "partition.clients=3; training.rounds=2; unlearning.rounds=2; model.name=cnn-tiny"
with Workers() as workers:
    workers.start({"partition-id": k, "allow": "forget"} for k in range(3))
    last = run(workers, {**what, "set": sizes}).lines()[-1]
print(f"asked in the last round: {last['asked']}; forget accuracy {last['forget']:.1f} %")
