"""Where samples come from, who holds them, and which of them must leave.

    load ─► Dataset(train, test)      a `Source` answers fetch(rows, draws) -> x, y
    iid | dirichlet | shards | …      D = ⊎_k D^k           rows of the source, per client
    split                             D^k = train ⊎ val     positions in the client's own order
    backdoor                          stamps and relabels some of one client's training rows
    mark                              D^k = D_r^k ⊎ D_u^k   one bool per position, united over the requests

Rows address a source; positions address a client. Nothing here keeps random state: augmentation is a function of
one integer word per row, everything else of a seed.
"""

from unfed.data.datasets import DATASETS, Dataset, Raw, load
from unfed.data.partition import Partition, dirichlet, iid, natural, shards, split
from unfed.data.poison import Trigger, backdoor, camouflage, confuse, poison, triggered
from unfed.data.scope import ClientData, DenyList, Request, SampleList, Unlabelled, keep_out, mark, public
from unfed.data.source import DatasetSource, Source, TensorSource, Transform

__all__ = [
    "DATASETS",
    "ClientData",
    "Dataset",
    "DatasetSource",
    "DenyList",
    "Partition",
    "Raw",
    "Request",
    "SampleList",
    "Source",
    "TensorSource",
    "Transform",
    "Trigger",
    "Unlabelled",
    "backdoor",
    "camouflage",
    "confuse",
    "dirichlet",
    "iid",
    "keep_out",
    "load",
    "mark",
    "natural",
    "poison",
    "public",
    "shards",
    "split",
    "triggered",
]
