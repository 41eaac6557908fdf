"""The client: it holds its own rows and decides itself what it accepts.

It runs plans and answers measures.

    train      a plan        ->  params, how many rows it covered, trained and dropped
    evaluate   measures      ->  counts and sums, each by itself; or one score per row, where the node allows it
    query      a census      ->  its name, how many rows of each view it holds, their shape, what it allows

`flwr run` starts it by `clientapp = "unfed.flower.client:app"`. It keeps nothing between messages: the forget
specification comes with every question, so a restarted client leaves out the same rows.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from unfed import plugins
from unfed.client.plan import Measure, Plan
from unfed.client.scores import measure, score
from unfed.client.step import visit
from unfed.data import ClientData
from unfed.errors import UnfedError
from unfed.flower import policy, wire
from unfed.flower.identity import KEYS
from unfed.flower.node_data import Node, NodeData, node_data_of, on, own_code, own_name
from unfed.flower.wire import Ask, answer
from unfed.model.params import check_like

log = logging.getLogger("flwr")  # a node's own record of what it was asked for

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Run a plan on this client's own rows."""
    return _replied(message, context, _train)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Count what a model gets right, or give sums of gradients, or scores of single rows."""
    return _replied(message, context, _evaluate)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say who this is and how many rows it holds; no model is involved."""
    return _replied(message, context, _census)


Handler = Callable[[Ask, NodeData, ClientData, Node], RecordDict]


def _replied(message: Message, context: Context, handle: Handler) -> Message:
    """A refusal is an answer, with a reason that the server can name.

    A mistake of ours is Flower's own error.
    """
    node: Node = dict(context.node_config)
    ask = Ask("unread", own_name(node), "")
    try:
        ask = Ask.of(message)
        log.info("unfed: asked for %s by the server (client %r)", ask.kind, ask.client)
        # What the server names is run only where the node names it too.
        with plugins.allow_only(own_code(node), "name it in the node config if you trust it"):
            shard = node_data_of(ask.shard, node, ask.client or own_name(node) or "unnamed")
            content = handle(ask, shard, shard.scoped(ask.scope, ask.gone), node)
    except UnfedError as error:
        words = {"name": own_name(node)}
        content = answer(ask, refused={"all": str(error).rstrip(".")}, words=words)
    return Message(content, reply_to=message)


def _train(ask: Ask, shard: NodeData, client: ClientData, node: Node) -> RecordDict:
    plan = Plan.from_json(ask.body)
    objection = policy.objection_to_plan(plan, client, policy.allowed(node))
    if objection:
        return answer(ask, refused={"all": objection})
    template = shard.make()
    params = on(ask.tensors["params"], template.like)
    check_like(params, template.like, "The server's model")
    context = {name: on(tensors, template.like) for name, tensors in ask.context.items()}
    context |= wire.drawn_models(ask.drawn, shard.fresh)
    kept = ask.tensors.get("optimiser")
    done = visit(template, plan, client, params, context, None if kept is None else on(kept, template.like))
    tensors = {"params": done.params} | ({"optimiser": done.optimiser} if plan.keep else {})
    counts = {"samples": done.samples, "trained": done.trained, "forwarded": done.forwarded}
    return answer(ask, tensors, {"counts": {**counts, "dropped": _dropped(client)}})


def _evaluate(ask: Ask, shard: NodeData, client: ClientData, node: Node) -> RecordDict:
    template = shard.make()
    params = on(ask.tensors["params"], template.like)
    check_like(params, template.like, "The server's model")
    allow = policy.allowed(node)
    if ask.kind == wire.SCORES:
        view = str(json.loads(ask.body))
        objection = policy.objection_to_scores(view, client, allow)
        if objection:
            return answer(ask, refused={"all": objection})
        scores = score(template, params, client.source, client.rows[client.view(view)])
        columns = {name: getattr(scores, name) for name in scores.__dataclass_fields__}
        return answer(ask, {"scores": columns}, {"counts": {"count": len(scores)}})
    tensors: dict[str, dict[str, Tensor]] = {}
    numbers: dict[str, dict[str, float]] = {}
    refused: dict[str, str] = {}
    for place, raw in enumerate(json.loads(ask.body)):
        what = Measure.from_json(json.dumps(raw))
        objection = policy.objection_to_measure(what, client, allow)
        if objection:
            refused[str(place)] = objection
            continue
        sums = measure(template, what, client, params)
        numbers[f"sums.{place}"] = {n: float(t) for n, t in sums.items() if n in wire.COUNTED}
        if what.what != "correct":
            tensors[f"tensors.{place}"] = {n: t for n, t in sums.items() if n not in wire.COUNTED}
    return answer(ask, tensors, numbers, refused)


def _census(ask: Ask, shard: NodeData, client: ClientData, node: Node) -> RecordDict:
    views = {view: len(client.view(view)) for view in ("all", "retain", "forget", "val")}
    whole = {"rows": len(client.rows), "dropped": _dropped(client), "classes": client.source.classes}
    also = {key: str(node[key]) for key in KEYS if key in node}
    words = {**also, "name": own_name(node), "allow": ",".join(sorted(policy.allowed(node)))}
    return answer(
        ask, numbers={"counts": {**views, **whole, "shape": [int(size) for size in client.source.shape]}}, words=words
    )


def _dropped(client: ClientData) -> int:
    """How many of its training rows this client leaves out of `retain`."""
    return len(client.view("forget"))
