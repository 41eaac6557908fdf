"""The client: it holds its own rows, runs plans, measures, and decides what it accepts.

    train      a plan        ->  params, how many rows it covered, trained and dropped
    measure    measures      ->  counts and sums, each by itself
    scores     a view        ->  one score per row, where the node allows it
    census     nothing       ->  its name, how many rows of each view it holds, their shape, what it allows

It keeps nothing between messages: the forget specification comes with every question, so a restarted client leaves out
the same rows. Its own node config decides what may be done with its data:

    always        training on retained rows, and counted metrics (how many, how many right, the summed loss) of
                  retained and validation rows
    allow="…"     forget       also train and count on the rows that are to be forgotten
                  gradients    also answer with summed gradients
                  samples      also answer with the loss of single rows (for membership inference)

`all` means the retained rows and those to be forgotten, so it counts as `forget` where the client holds any of these.
The node config also says where the rows are:

    partition-id=0                     a part of a data set that is dealt to the nodes (trying out)
    client="north" data-root="/data"   a whole data set that lies here (the experiment's, or data=…)
    loader="mine.data:load"            what your own function returns: (x, y), or a map-style data set

The server says which experiment this is (data set, partition, model, seed); of that only the keys in `KEYS` and the
tables in `WHOLE` are read. A model or data set from a user's `package.module:factory` is made only where the node
config names the same factory.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from unfed import plugins, rng
from unfed.client.plan import Measure, Plan
from unfed.client.scores import measure, score
from unfed.client.step import visit
from unfed.config.config import Config, Seeds
from unfed.data import ClientData, DatasetSource, Request, Source, TensorSource, keep_out, split
from unfed.data.scope import own_marks
from unfed.engines.choice import fixed_library
from unfed.errors import UnfedError, listed, nearest
from unfed.model.functional import Template
from unfed.model.params import Params, cast, check_like
from unfed.remote import messages
from unfed.remote.messages import KINDS, NAMED_BY, Answer, Ask, answer
from unfed.runs.simulated import HALVES, Network, data_set, deal, pick_device
from unfed.runs.world import DTYPES

# --- what a node holds ------------------------------------------------------------------------------------------------


Node = Mapping[str, Any]
"""A node config, as the operator of the node wrote it."""


DATA = ("name", "train_size", "test_size", "flip", "pad_crop", "resize", "crop")
KEYS: Mapping[str, Sequence[str]] = {"data": DATA, "model": ("name", "options"), "engine": ("precision",)}
WHOLE = ("partition", "poison", "seeds")
"""The keys of an experiment that a node must know: some of these tables, and all of those. No method is among them."""


def own_code(node: Node) -> frozenset[str]:
    """The code that a node's own config names, and so allows here: its model, data set and loader."""
    return frozenset(str(node[key]) for key in ("model", "data", "loader") if key in node)


def describe(
    config: Config,
    seed: int,
    shape: tuple[int, ...] | None = None,
    classes: int | None = None,
    threads: int | None = None,
) -> str:
    """The experiment as nodes must know it: no request, no path of the server's."""
    parts = _needed(config.to_json())
    facts = {"config": parts, "seed": seed, "shape": None if shape is None else list(shape), "classes": classes}
    return json.dumps(facts | {"threads": threads}, sort_keys=True)


def _needed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an experiment's config that a node must know."""
    some = {table: {key: config[table][key] for key in keys} for table, keys in KEYS.items()}
    # Of a deny list the classes alone: a node need not know other clients' names.
    classes = dict(config.get("deny") or {}).get("classes")
    denied = {"deny": {"classes": classes}} if classes else {}
    return some | {table: config[table] for table in WHOLE} | denied


def _read(text: str) -> dict[str, Any]:
    """What a server says of the experiment; other keys are ignored."""
    try:
        facts = json.loads(text)
        return {
            **{key: facts[key] for key in ("seed", "shape", "classes", "threads")},
            "config": _needed(facts["config"]),
        }
    except (ValueError, KeyError, TypeError) as error:
        raise UnfedError(f"What the server says of the experiment cannot be read ({error!r}).") from error


def own_name(node: Node) -> str:
    """What a node calls itself, by the first of `NAMED_BY` in its config; empty if it does not say."""
    return str(next((node[key] for key in NAMED_BY if key in node), ""))


Model = tuple[Template, Callable[[int], Params]]
"""The model as a function, and a new initialisation by a seed."""


@dataclass(frozen=True)
class NodeData:
    """A client with its data, and the model once the server has said what it is."""

    data: ClientData
    seeds: Seeds
    made: Model | None
    """None before the server has said which form the model has."""

    @property
    def model(self) -> Model:
        if self.made is None:
            raise UnfedError("The server did not say which shape and how many classes the model has; update it.")
        return self.made

    def scoped(self, scope: tuple[Request, ...], gone: tuple[Request, ...]) -> ClientData:
        """The client with these requests marked; of what is gone, no training row is left."""
        seed = self.seeds.partition
        marked = replace(self.data, forget=own_marks(self.data, scope, seed))
        if not gone:
            return marked
        before = own_marks(self.data, gone, seed)
        return replace(marked, train=marked.train[~before[marked.train]])


def node_data_of(text: str, node: Node, client: str) -> NodeData:
    """The shard that a node config describes, for an experiment; kept while the process lives."""
    parts, own = _read(text)["config"], not _is_dealt(node) and bool({"data", "loader"} & node.keys())
    for what in ("model",) if own else ("model", "data"):
        name = str(parts[what]["name"])
        if plugins.looks_like_code(name) and node.get(what) != name:
            raise UnfedError(
                f"The server asks for the {what} {name!r}, which runs code of that module; allow it here by"
                f' {what}="{name}" in the node config.'
            )
    key = tuple(sorted((name, str(value)) for name, value in node.items()))
    return _node_data(text, key, client)


@lru_cache(maxsize=64)
def _node_data(text: str, key: tuple[tuple[str, str], ...], client: str) -> NodeData:
    node, facts = dict(key), _read(text)
    device = node.get("device", "auto")
    if facts["threads"] is not None:
        torch.set_num_threads(facts["threads"])
    fixed_library(pick_device(device), HALVES.get(facts["config"]["engine"]["precision"]))
    if _is_dealt(node):
        before = json.dumps({**facts, "shape": None, "classes": None, "threads": None}, sort_keys=True)
        clients, seeds, made = _dealt(before, node.get("data-root"), device)  # kept once the shape is known, too
        data = replace(_partition(clients, node), name=client)
        _check(data.source, facts)
        return NodeData(data, seeds, made)
    config = _config(facts, node.get("data-root"), device, train_size=None)  # what lies here is taken whole
    seeds, where = Seeds.of(config, facts["seed"]), pick_device(device)
    source = _own_source(config, node, seeds, where)
    _check(source, facts)
    rows = torch.arange(len(source))
    train, val = split(len(rows), rng.key(seeds.partition, "validation", client), config.partition.validation)
    (data,) = keep_out([ClientData(client, source, rows, train, val)], config.deny.listed())
    return NodeData(data, seeds, None if facts["shape"] is None else _made(text, device))


def _is_dealt(node: Node) -> bool:
    """Whether it plays one part of a data set that every node has."""
    return "partition-id" in node and "loader" not in node


@lru_cache(maxsize=2)
def _dealt(text: str, root: str | None, device: str) -> tuple[tuple[ClientData, ...], Seeds, Model]:
    """The whole federation, of which a node plays one part: for trials where every node has all data."""
    facts = _read(text)
    config, where = _config(facts, root, device), pick_device(device)
    seeds = Seeds.of(config, facts["seed"])
    dataset = data_set(config, seeds, where)
    network = Network(config, dataset.train.shape, dataset.train.classes, where, dataset.train.inputs)
    return deal(config, seeds, dataset).clients, seeds, (network.template(), network.fresh)


@lru_cache(maxsize=2)
def _made(text: str, device: str) -> Model:
    facts = _read(text)
    network = Network(_config(facts, None, device), tuple(facts["shape"]), facts["classes"], pick_device(device))
    return network.template(), network.fresh


def _config(facts: Mapping[str, Any], root: str | None, device: str, **own: Any) -> Config:
    parts = dict(facts["config"])
    parts["data"] = {**parts["data"], "root": root, **own}
    parts["engine"] = {**parts["engine"], "name": "sequential"}
    return Config.kept({**parts, "seed": facts["seed"], "device": device})


def _partition(clients: Sequence[ClientData], node: Mapping[str, str]) -> ClientData:
    count, number = len(clients), node["partition-id"]
    if node.get("num-partitions", str(count)) != str(count):
        raise UnfedError(f"The node counts {node['num-partitions']} partitions, the experiment {count}; align them.")
    if not number.isdigit() or int(number) >= count:
        raise UnfedError(f"The node config has partition-id={number}; it must be one of 0 to {count - 1}.")
    return clients[int(number)]


def _own_source(config: Config, node: Mapping[str, str], seeds: Seeds, device: torch.device) -> Source:
    if "loader" in node:
        return _loaded(node["loader"], node, device, DTYPES[config.engine.precision])
    return data_set(config, seeds, device, node.get("data")).train


def _loaded(path: str, node: Mapping[str, str], device: torch.device, dtype: torch.dtype) -> Source:
    """What the user's function returns, as a source."""
    loader = plugins.load(path, "loader", "loader", callable, "a function of the node config")
    found = plugins.call(loader, path, "loader", dict(node))
    if isinstance(found, tuple) and len(found) == 2 and all(isinstance(part, Tensor) for part in found):
        return TensorSource(found[0].to(device), found[1].to(device), dtype=dtype)
    if hasattr(found, "fetch"):
        source: Source = found
        return source
    if hasattr(found, "__len__") and hasattr(found, "__getitem__"):
        return DatasetSource(found, dtype=dtype, device=device, warn=False)
    kind = type(found).__name__
    raise UnfedError(f"The loader {path!r} returned a {kind}; return tensors (x, y), or a map-style data set.")


def _check(source: Source, facts: Mapping[str, Any]) -> None:
    """Refuse, before any training, a federation whose images or classes are not these."""
    if facts["shape"] is not None and tuple(facts["shape"]) != tuple(source.shape):
        raise UnfedError(
            f"its samples have the shape {tuple(source.shape)}, the federation's {tuple(facts['shape'])}; give it the"
            " federation's data"
        )
    if facts["classes"] is not None and source.classes > facts["classes"]:
        raise UnfedError(f"it holds {source.classes} classes, the federation's model tells {facts['classes']} apart")


def on(params: Params, like: Params) -> Params:
    """Received tensors, on the device and in the type of the template."""
    some = next(t for t in like.values() if t.is_floating_point())
    return cast(params, some.dtype, some.device)


# --- what it accepts and answers --------------------------------------------------------------------------------------


def allowed(node: Mapping[str, Any]) -> frozenset[str]:
    """The kinds of question that a node config allows beyond the usual ones."""
    words = [word.strip() for word in str(node.get("allow", "")).split(",") if word.strip()]
    for word in words:
        if word not in KINDS:
            raise UnfedError(f"The node config allows {word!r}; it can allow {listed(KINDS)}.{nearest(word, KINDS)}")
    return frozenset(words)


def accept(view: str, client: ClientData, allow: frozenset[str], verb: str = "measure") -> None:
    """Refuse to train on or to measure rows that are to be forgotten, unless the node allows it."""
    concerned = view == "forget" or (view == "all" and len(client.view("forget")) > 0)
    if concerned and "forget" not in allow:
        raise UnfedError(f'it does not {verb} rows that are to be forgotten (its node config lacks allow="forget")')


def answered(read: Callable[[], Ask], node: Node, log: logging.Logger) -> Answer:
    """The answer of a node with this config to the question that is read.

    The node's own log says what it was asked. A refusal is an answer with a reason that the server can name; any other
    error is raised.
    """
    ask = Ask("unread", own_name(node), "")
    try:
        ask = read()
        log.info("unfed: asked for %s by the server (client %r)", ask.kind, ask.client)
        handle = _HANDLERS.get(ask.kind)
        if handle is None:
            raise UnfedError(f"it is asked for {ask.kind!r}, which it does not know; it knows {listed(_HANDLERS)}")
        # What the server names is run only where the node names it too.
        with plugins.allow_only(own_code(node), "name it in the node config if you trust it"):
            shard = node_data_of(ask.shard, node, ask.client or own_name(node) or "unnamed")
            return handle(ask, shard, shard.scoped(ask.scope, ask.gone), node)
    except UnfedError as error:
        words = {"name": own_name(node)}
        return answer(ask, refused={"all": str(error).rstrip(".")}, words=words)


def _train(ask: Ask, shard: NodeData, client: ClientData, node: Node) -> Answer:
    plan = Plan.from_json(ask.body)
    for phase in plan.phases:
        if phase.view == "val":
            raise UnfedError("it does not train on validation rows")
        accept(phase.view, client, allowed(node), "train on")
    template, params = _model(ask, shard)
    context = {name: on(tensors, template.like) for name, tensors in ask.context.items()}
    context |= messages.drawn_models(ask.drawn, shard.model[1])
    kept = ask.tensors.get("optimiser")
    done = visit(template, plan, client, params, context, None if kept is None else on(kept, template.like))
    tensors = {"params": done.params} | ({"optimiser": done.optimiser} if plan.keep else {})
    counts = {"samples": done.samples, "trained": done.trained, "forwarded": done.forwarded}
    return answer(ask, tensors, {"counts": {**counts, "dropped": _dropped(client)}})


def _measure(ask: Ask, shard: NodeData, client: ClientData, node: Node) -> Answer:
    template, params = _model(ask, shard)
    allow = allowed(node)
    tensors: dict[str, dict[str, Tensor]] = {}
    numbers: dict[str, dict[str, float]] = {}
    refused: dict[str, str] = {}
    for place, raw in enumerate(json.loads(ask.body)):
        what = Measure.from_json(json.dumps(raw))
        try:
            if what.what != "correct" and "gradients" not in allow:
                raise UnfedError('it does not give gradients (its node config lacks allow="gradients")')
            accept(what.view, client, allow)
        except UnfedError as error:
            refused[str(place)] = str(error)
            continue
        sums = measure(template, what, client, params)
        numbers[f"sums.{place}"] = {n: float(t) for n, t in sums.items() if n in messages.COUNTED}
        if what.what != "correct":
            tensors[f"tensors.{place}"] = {n: t for n, t in sums.items() if n not in messages.COUNTED}
    return answer(ask, tensors, numbers, refused)


def _scores(ask: Ask, shard: NodeData, client: ClientData, node: Node) -> Answer:
    template, params = _model(ask, shard)
    view = str(json.loads(ask.body))
    if "samples" not in allowed(node):
        raise UnfedError('it does not give losses of single rows (its node config lacks allow="samples")')
    accept(view, client, allowed(node))
    scores = score(template, params, client.source, client.rows[client.view(view)])
    columns = {name: getattr(scores, name) for name in scores.__dataclass_fields__}
    return answer(ask, {"scores": columns}, {"counts": {"count": len(scores)}})


def _census(ask: Ask, shard: NodeData, client: ClientData, node: Node) -> Answer:
    views = {view: len(client.view(view)) for view in ("all", "retain", "forget", "val")}
    whole = {"rows": len(client.rows), "dropped": _dropped(client), "classes": client.source.classes}
    also = {key: str(node[key]) for key in NAMED_BY if key in node}
    words = {**also, "name": own_name(node), "allow": ",".join(sorted(allowed(node)))}
    shape = [int(size) for size in client.source.shape]
    return answer(ask, numbers={"counts": {**views, **whole, "shape": shape}}, words=words)


def _model(ask: Ask, shard: NodeData) -> tuple[Template, Params]:
    """The model as a function, and the server's parameters of it."""
    template = shard.model[0]
    params = on(ask.tensors["params"], template.like)
    check_like(params, template.like, "The server's model")
    return template, params


def _dropped(client: ClientData) -> int:
    """How many of its training rows this client leaves out of `retain`."""
    return len(client.view("forget"))


Handler = Callable[[Ask, NodeData, ClientData, Node], Answer]
_HANDLERS: dict[str, Handler] = {
    messages.TRAIN: _train,
    messages.MEASURE: _measure,
    messages.SCORES: _scores,
    messages.CENSUS: _census,
}
