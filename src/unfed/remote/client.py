"""The client: it holds its own rows and decides itself what it accepts.

It runs plans and answers measures.

    train      a plan        ->  params, how many rows it covered, trained and dropped
    measure    measures      ->  counts and sums, each by itself
    scores     a view        ->  one score per row, where the node allows it
    census     nothing       ->  its name, how many rows of each view it holds, their shape, what it allows

It keeps nothing between messages: the forget specification comes with every question, so a restarted client leaves out
the same rows.

What a client lets be done with its data: its own node config decides, not the server.

    always        training on retained rows, and counted metrics (how many, how many right, the summed loss) of
                  retained and validation rows
    allow="…"     forget       also train and count on the rows that are to be forgotten
                  gradients    also answer with summed gradients
                  samples      also answer with the loss of single rows (for membership inference)

`all` means the retained rows and those to be forgotten, so it counts as `forget` where the client holds any of these.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from unfed import plugins
from unfed.client.plan import Measure, Plan
from unfed.client.scores import measure, score
from unfed.client.step import visit
from unfed.data import ClientData
from unfed.errors import UnfedError, listed, nearest
from unfed.model.functional import Template
from unfed.model.params import Params, check_like
from unfed.remote import messages
from unfed.remote.messages import KINDS, NAMED_BY, Answer, Ask, answer
from unfed.remote.node_data import Node, NodeData, node_data_of, on, own_code, own_name


def allowed(node: Mapping[str, Any]) -> frozenset[str]:
    """The kinds of question that a node config allows beyond the usual ones."""
    words = [word.strip() for word in str(node.get("allow", "")).split(",") if word.strip()]
    for word in words:
        if word not in KINDS:
            raise UnfedError(f"The node config allows {word!r}; it can allow {listed(KINDS)}.{nearest(word, KINDS)}")
    return frozenset(words)


def objection_to_plan(plan: Plan, client: ClientData, allow: frozenset[str]) -> str:
    """Why the client will not run a plan; empty if it will."""
    for phase in plan.phases:
        if phase.view == "val":
            return "it does not train on validation rows"
        reason = _objection_to_view(phase.view, client, allow, "train on")
        if reason:
            return reason
    return ""


def objection_to_measure(what: Measure, client: ClientData, allow: frozenset[str]) -> str:
    """Why the client will not answer a measure; empty if it will."""
    if what.what != "correct" and "gradients" not in allow:
        return 'it does not give gradients (its node config would need allow="gradients")'
    return _objection_to_view(what.view, client, allow, "measure")


def objection_to_scores(view: str, client: ClientData, allow: frozenset[str]) -> str:
    """Why the client will not give one score per row; empty if it will."""
    if "samples" not in allow:
        return 'it does not give losses of single rows (its node config would need allow="samples")'
    return _objection_to_view(view, client, allow, "measure")


def _objection_to_view(view: str, client: ClientData, allow: frozenset[str], verb: str) -> str:
    concerned = view == "forget" or (view == "all" and len(client.view("forget")) > 0)
    if concerned and "forget" not in allow:
        return f'it does not {verb} rows that are to be forgotten (its node config would need allow="forget")'
    return ""


def answered(read: Callable[[], Ask], node: Node, log: logging.Logger) -> Answer:
    """The answer of a node with this config to the question that is read.

    The node's own log says what it was asked. A refusal is an answer, with a reason that the server can name; a mistake
    of ours is raised.
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
    objection = objection_to_plan(plan, client, allowed(node))
    if objection:
        return answer(ask, refused={"all": objection})
    template, params = _model(ask, shard)
    context = {name: on(tensors, template.like) for name, tensors in ask.context.items()}
    context |= messages.drawn_models(ask.drawn, shard.fresh)
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
        objection = objection_to_measure(what, client, allow)
        if objection:
            refused[str(place)] = objection
            continue
        sums = measure(template, what, client, params)
        numbers[f"sums.{place}"] = {n: float(t) for n, t in sums.items() if n in messages.COUNTED}
        if what.what != "correct":
            tensors[f"tensors.{place}"] = {n: t for n, t in sums.items() if n not in messages.COUNTED}
    return answer(ask, tensors, numbers, refused)


def _scores(ask: Ask, shard: NodeData, client: ClientData, node: Node) -> Answer:
    template, params = _model(ask, shard)
    view = str(json.loads(ask.body))
    objection = objection_to_scores(view, client, allowed(node))
    if objection:
        return answer(ask, refused={"all": objection})
    scores = score(template, params, client.source, client.rows[client.view(view)])
    columns = {name: getattr(scores, name) for name in scores.__dataclass_fields__}
    return answer(ask, {"scores": columns}, {"counts": {"count": len(scores)}})


def _census(ask: Ask, shard: NodeData, client: ClientData, node: Node) -> Answer:
    views = {view: len(client.view(view)) for view in ("all", "retain", "forget", "val")}
    whole = {"rows": len(client.rows), "dropped": _dropped(client), "classes": client.source.classes}
    also = {key: str(node[key]) for key in NAMED_BY if key in node}
    words = {**also, "name": own_name(node), "allow": ",".join(sorted(allowed(node)))}
    return answer(
        ask, numbers={"counts": {**views, **whole, "shape": [int(size) for size in client.source.shape]}}, words=words
    )


def _model(ask: Ask, shard: NodeData) -> tuple[Template, Params]:
    """The model as a function, and the server's parameters of it."""
    template = shard.make()
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
