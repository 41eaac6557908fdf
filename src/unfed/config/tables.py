"""The tables of a config: frozen values with every key, its type and its default.

What belongs together across tables is checked in `config.py`. Methods have tables of their own, whose keys are their
hyperparameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from unfed.client.plan import Rule
from unfed.data import DenyList, Request, SampleList
from unfed.data.scope import exactly_one


class ConfigTable(BaseModel):
    """A table: an unknown key is a mistake, and nothing is changed afterwards.

    The docstring under a key is pydantic's description of it; the reference page shows it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
ClientName = Annotated[str, BeforeValidator(lambda v: str(v) if isinstance(v, int) and not isinstance(v, bool) else v)]


class DataConfig(ConfigTable):
    """Which data, how much of it, and how images are augmented.

    What is not given is the data set's own.
    """

    name: str = "digits"
    """A name of `unfed data list`, `imagefolder`, `table`, `text`, or your own package.module:factory."""
    root: Path | None = None
    """Its folder or, for a table, its file; default: UNFED_DATA."""
    label: str | None = None
    """Column of a table that holds the label; default: `label`, `target` or `y`."""
    owner: str | None = None
    """Column of a table that says whose a row is, for partition.scheme = `natural`."""
    test_size: Positive | None = None
    """Images held out for testing, if the data set has no test set."""
    train_size: Positive | None = None
    """Training rows to keep, drawn by the seed; default: all."""
    flip: Share | None = None
    """Probability of mirroring a training image."""
    pad_crop: Annotated[int, Field(ge=0)] | None = None
    """Pixels of padding before a random crop to the old size."""
    resize: Positive | None = None
    """Side of the square, in pixels, that images are stretched to."""
    crop: Positive | None = None
    """Side of the square cut from the middle."""


class PartitionConfig(ConfigTable):
    """How the training rows are dealt to clients."""

    clients: Positive = 10
    """Number of clients."""
    scheme: Literal["iid", "dirichlet", "shards", "natural"] = "iid"
    """`iid`: at random. `dirichlet`: uneven classes. `shards`: few classes. `natural`: by owner."""
    beta: Annotated[float, Field(gt=0)] = 0.1
    """With `dirichlet`: how alike clients are; small: few classes each."""
    shards_per_client: Positive = 2
    """With `shards`: blocks of one class per client."""
    min_samples: Positive = 2
    """Fewest rows of a client."""
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Share of each client's rows held out for validation."""


class PoisonConfig(ConfigTable):
    """A client that poisons a share of its rows, and its helpers.

    `backdoor` stamps a trigger and relabels to `target_class`; `colluders` do the same. `confusion` swaps the labels of
    two `classes`. `camouflage` is a backdoor that `hidden_by` hides with stamped images under their right labels.
    """

    kind: Literal["backdoor", "confusion", "camouflage"] = "backdoor"
    """`confusion`: two classes swapped. `camouflage`: a backdoor that a departure arms."""
    client: ClientName = "0"
    """The client that poisons its rows."""
    target_class: Annotated[int, Field(ge=0)] = 0
    """Label of a stamped image."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Share of its training rows to poison."""
    colluders: tuple[ClientName, ...] = ()
    """Clients that do the same."""
    classes: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]] = (0, 1)
    """With `confusion`: the two classes."""
    hidden_by: ClientName | None = None
    """With `camouflage`: the client that hides the backdoor by stamped images with right labels."""

    @model_validator(mode="after")
    def _fits(self) -> PoisonConfig:
        if (self.kind == "camouflage") != (self.hidden_by is not None):
            raise ValueError("poison.hidden_by names who hides the backdoor, exactly where poison.kind is 'camouflage'")
        if len(set(self.everybody)) < len(self.everybody):
            raise ValueError("poison names a client twice; poison.client, colluders and hidden_by are different ones")
        return self

    @property
    def trigger_class(self) -> int | None:
        """What a stamped image is read as, where images are stamped."""
        return None if self.kind == "confusion" else self.target_class

    @property
    def everybody(self) -> tuple[str, ...]:
        """All whom it names."""
        return (self.client, *self.colluders, *(() if self.hidden_by is None else (self.hidden_by,)))


class ModelConfig(ConfigTable):
    """The network: a preset with options, or `package.module:factory`."""

    name: str = "cnn-small"
    """A network of unfed, or your own package.module:factory (with --allow-code)."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the factory, such as widths."""
    initial: Path | None = None
    """A safetensors file to start training from."""
    fresh_head: bool = False
    """Take all but the head from `initial`."""


class ScheduleConfig(ConfigTable):
    """The learning rate over the rounds."""

    kind: Literal["constant", "cosine", "step", "one-cycle"] = "constant"
    """one-cycle: up to lr in a fifth of the rounds, then down to 2 % of it."""
    minimum: Rate = 0.0
    """The rate at which a cosine ends."""
    every: Positive = 1
    """With step: rounds between two changes."""
    factor: Annotated[float, Field(gt=0, le=1)] = 0.1
    """With step: what the rate is multiplied by."""
    warmup: Annotated[int, Field(ge=0)] = 0
    """Rounds in which the rate rises."""
    over: Positive | None = None
    """Rounds of the cosine or cycle; default: all."""

    @model_validator(mode="after")
    def _rises_once(self) -> ScheduleConfig:
        if self.kind == "one-cycle" and self.warmup:
            raise ValueError("schedule.warmup is not for one-cycle, which rises by itself; leave it out")
        return self


class RobustConfig(ConfigTable):
    """How updates are averaged, and which are refused."""

    rule: Literal["mean", "norm", "median", "trimmed"] = "mean"
    """`norm` clips updates; `trimmed` is a trimmed mean."""
    bound: Annotated[float, Field(gt=0)] = 2.0
    """With norm: the largest norm, as a multiple of the median norm."""
    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    """With trimmed: share cut off at each end."""
    refuse_above: Annotated[float, Field(ge=0)] = 10.0
    """Refuse updates longer than the model and so many times the usual; 0: never."""


class TrainingConfig(ConfigTable):
    """The original training: FedAvg, by default with SGD.

    Adam and AdamW begin with empty moments at every visit of a client; where one place holds all data they go on.
    """

    rounds: Positive = 60
    """Rounds of FedAvg; with setting = central, epochs."""
    epochs: Positive = 1
    """Local epochs per round."""
    batch: Positive = 32
    """Rows per step."""
    optimiser: Rule = "sgd"
    """The clients' optimiser."""
    lr: Rate = 0.1
    """Learning rate at the start."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """SGD's momentum."""
    decay: Rate = 5e-4
    """Weight decay."""
    clip: Annotated[float, Field(gt=0)] | None = None
    """Largest l2 norm of a gradient; default: no limit."""
    schedule: ScheduleConfig = ScheduleConfig()
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of clients asked in a round."""
    drop_out: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability that a client does not answer."""
    quorum: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of the asked clients that must answer (else exit code 3)."""
    robust: RobustConfig = RobustConfig()
    patience: Annotated[int, Field(ge=0)] = 0
    """Stop after so many evaluations without better validation accuracy; 0: never."""
    keep_model: Literal["last", "best-test"] = "last"
    """Which model is θ*: the last, or the best on test data."""
    record: tuple[str, ...] = ()
    """Methods whose history is recorded for later requests (FedEraser, FUKD, PGD)."""
    keep_every: Annotated[int, Field(ge=0)] = 0
    """Keep the model every so many rounds, for Rewind; 0: never."""


def _one_rate(table: UnlearningConfig | RecoveryConfig) -> None:
    """Refuse a rate that is given and tuned at once."""
    if table.tune and table.lr is not None:
        raise ValueError("give unlearning.lr, or the rates to try in unlearning.tune, not both")


class UnlearningConfig(ConfigTable):
    """Recovery after the request.

    What is not given is as in training, or as in the method's centralised recipe.
    """

    rounds: Positive = 20
    """Rounds after the request."""
    retrain_rounds: Positive | None = None
    """Rounds for Retrain; default: as in training."""
    lr: Rate | None = None
    """Learning rate; default: training's, or the method's central recipe."""
    epochs: Positive | None = None
    """Local epochs per round; default: as in training."""
    tune: tuple[Annotated[float, Field(gt=0, le=1e6)], ...] = ()
    """Learning rates to try in short trials on validation rows."""
    tune_rounds: Positive = 3
    """Rounds of each trial."""
    clip: Annotated[float, Field(gt=0)] | None = None
    """Largest l2 norm of a gradient; default: as in training."""
    schedule: ScheduleConfig | None = None
    robust: RobustConfig | None = None
    patience: Annotated[int, Field(ge=0)] = 0
    """Stop after so many evaluations without better validation accuracy; 0: never."""

    @model_validator(mode="after")
    def _rate(self) -> UnlearningConfig:
        _one_rate(self)
        return self


class RecoveryConfig(ConfigTable):
    """What `[methods.NAME.unlearning]` says for one method alone.

    Retrain takes its recipe from here and else from training, never from `[unlearning]`.
    """

    rounds: Positive | None = None
    """Rounds after the request."""
    lr: Rate | None = None
    """Learning rate; default: training's, or the method's central recipe."""
    epochs: Positive | None = None
    """Local epochs per round; default: that of `[unlearning]`."""
    tune: tuple[Annotated[float, Field(gt=0, le=1e6)], ...] | None = None
    """Learning rates to try, as in `[unlearning]`."""
    schedule: ScheduleConfig | None = None

    @model_validator(mode="after")
    def _rate(self) -> RecoveryConfig:
        _one_rate(self)
        return self


@dataclass(frozen=True)
class KeptList:
    """A list of samples as it was read from its file.

    It is kept in the run folder, whatever becomes of the file.
    """

    source: str
    sha256: str
    text: str

    def __post_init__(self) -> None:
        if self.sha256 != self.list.sha256:
            raise ValueError(f"the list read from {self.source} is not the one its SHA-256 vouches for; restore it")

    @property
    def list(self) -> SampleList:
        return SampleList(self.source, self.text)


class RequestConfig(ConfigTable):
    """What must leave: exactly one of clients, classes, samples or fraction.

    `samples` is the path of a list, which is read at once; a run folder keeps what it says. `select = "memorised"`
    makes such a list: of the rows that a `population` forgot, the `fraction` that its models had memorised most.
    """

    id: str | None = None
    """The request's name, also its seed. Default: request-1, …"""
    clients: tuple[ClientName, ...] = ()
    """Clients that leave."""
    classes: tuple[int, ...] = ()
    """Classes to forget, at every client."""
    samples: KeptList | Path | None = None
    """A CSV file of single rows: `row`, or `client,position`."""
    fraction: float | None = None
    """A random share of every client's rows."""
    deleted: bool = False
    """The data is deleted: methods that need it are refused."""
    select: Literal["memorised"] | None = None
    """`memorised`: take the rows that a population memorised most."""
    population: Path | None = None
    """The folder of that population."""

    def request(self, number: int) -> Request:
        keys = ("clients", "classes", "samples", "fraction")
        exactly_one(self.name(number), {key: getattr(self, key) for key in keys})
        kept = self.samples.list if isinstance(self.samples, KeptList) else None
        if isinstance(self.samples, Path):  # only in run folders of layout 1
            kept = SampleList.read(self.samples)
        asked: dict[str, Any] = {"fraction": self.fraction, "deleted": self.deleted} | (kept.asked if kept else {})
        return Request(self.name(number), self.clients, self.classes, **asked)

    def owners(self) -> set[str]:
        """Whose rows it names, as far as a run folder tells by itself; no one where it does not."""
        asked = self.samples.list.asked if isinstance(self.samples, KeptList) else {}
        return {*self.clients, *(name for name, _ in asked.get("samples", ()))}

    def name(self, number: int) -> str:
        return self.id or f"request-{number}"


class EvaluationConfig(ConfigTable):
    """What is measured, and how often."""

    every: Positive = 1
    """Evaluate every so many rounds, and always the last."""
    batch: Positive = 1024
    """Rows per step of evaluation."""
    precision: Literal["params", "engine"] = "engine"
    """`engine`: as training computes. `params`: in the type of the params (float32 in a bf16 run)."""
    attack: bool = True
    """Whether to run the membership attack."""
    samples: bool | Literal["last"] = True
    """Keep the scores of single rows: of all evaluated rounds, of the last, or none."""
    recovered_within: Rate = 0.5
    """Points of validation accuracy that may be missing."""
    undo: bool = False
    """Whether each model is probed at the end: can it be undone?"""


class GateConfig(ConfigTable):
    """What a new model must show before it comes into force.

    What `require` lists decides like utility; the others are measured and shown.
    """

    max_drop: Rate = 10.0
    """Points of validation accuracy that a model may lose."""
    margin: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Largest advantage of an attack on the losses of forgotten rows (0 to 1)."""
    max_rise: Annotated[float, Field(ge=0, le=100)] = 30.0
    """Points by which the gate's trigger may turn more held-out images than before."""
    require: tuple[Literal["forgotten", "backdoor", "camouflage"], ...] = ()
    """Checks that decide besides utility."""


class DenyConfig(ConfigTable):
    """What an earlier run forgot, and this one must not train on.

    `run` names its folder.

    The rest is filled in from there: clients by name, classes by number, rows by keyed hashes. The key is never written
    into `run.json`; it lies beside it as `deny.key`.
    """

    run: Path | None = None
    """An earlier run whose forgotten clients, classes and rows stay out."""
    clients: tuple[ClientName, ...] = ()
    """Filled in from there."""
    classes: tuple[int, ...] = ()
    """Filled in from there."""
    rows: tuple[Annotated[str, Field(pattern="^[0-9a-f]{64}$")], ...] = ()
    """Filled in from there, as keyed hashes."""
    key: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = Field(default=None, exclude=True, repr=False)
    """The key of these hashes; kept beside run.json."""

    def listed(self) -> DenyList:
        """As data is measured by it."""
        key = None if self.key is None else bytes.fromhex(self.key)
        return DenyList(frozenset(self.clients), frozenset(self.classes), frozenset(self.rows), key)


class CheckpointConfig(ConfigTable):
    """How often a running job is saved."""

    rounds: Positive | None = 10
    """Save a running job every so many rounds."""
    seconds: Annotated[float, Field(gt=0)] | None = 30.0
    """And every so many seconds."""

    def due(self, rounds: int, seconds: float) -> bool:
        """Whether it is time to save, so many rounds and seconds after the last time."""
        by_rounds = self.rounds is not None and rounds >= self.rounds
        return by_rounds or (self.seconds is not None and seconds >= self.seconds)


class EngineConfig(ConfigTable):
    """What runs the plans, in which precision."""

    name: Literal["auto", "sequential", "batched"] = "auto"
    """sequential is the reference; batched computes clients together."""
    precision: Literal["float32", "float64", "bf16"] = "float32"
    """bf16 is fast on a GPU; float64 is for exact comparisons."""
    chunk: Positive | None = None
    """Clients per stack; default: as many as fit."""
    compile: bool | None = None
    """Whether to compile steps on CUDA; default: where it pays."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """CPU threads; default: one for small steps, else PyTorch's."""


class SeedsConfig(ConfigTable):
    """Seeds that do not derive from `seed`."""

    partition: int | None = None
    """Seed of the partition."""
    training: int | None = None
    """Seed of training."""
    unlearning: int | None = None
    """Seed of unlearning."""
    evaluation: int | None = None
    """Seed of the attack's splits."""
