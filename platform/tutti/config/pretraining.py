"""The options of pretraining, typed: the keys of its file, of ``tutti.pretrain``, and the options of the command."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError, field_validator

from tutti.config.load import Places, override
from tutti.config.paths import resolve_pretraining
from tutti.config.pretraining_search import PretrainingSearch, pretraining_search_faults
from tutti.config.pydantic_faults import faults_of
from tutti.config.space import Categorical, SearchSpace
from tutti.config.strict import Strict
from tutti.config.study import Seed
from tutti.config.yaml_file import odd_values, read_mapping
from tutti.errors import ConfigError, Fault

ObjectiveName = Literal["masked", "electra", "causal"]
Masks = Literal["tokens", "whole-words", "spans"]
DocumentEnd = Literal["line", "blank-line"]
LEARNING_RATES: dict[ObjectiveName, float] = {"masked": 1e-4, "electra": 5e-4, "causal": 1e-4}
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PretrainingSettings(Strict):
    """The numbers of a run. Those of the optimizer are ELECTRA's (arXiv 2003.10555), which suit the other objectives.

    Attributes:
        epochs: passes over the texts; ``steps``, if given, replaces them.
        learning_rate: the peak, reached after ``warmup``; it then decays linearly to 0. None for the objective's own.
        batch_size: rows of a batch, for each worker.
        accumulation: batches of an optimizer step.
        warmup: share of the steps; from 1 on, their number.
        max_grad_norm: 0 for no clipping.
        mask_share: of the tokens that are not special. None for 0.15, with ELECTRA 0.25 from a width of 1,024 on.
        masks: what is masked as a whole: a token, a word, or a span of words (SpanBERT, arXiv 1907.10529).
        all_masks: whether every chosen token is replaced by the mask; otherwise 80% are, 10% by random tokens (BERT).
        generator_size: ELECTRA's generator's width as a share of the discriminator's.
        discriminator_weight: of the discriminator's loss beside the generator's.
        save_steps, save_minutes: a state is saved as soon as one of them has passed; 0 steps for never by steps.
        evaluate_steps: the held-out loss is also measured every so many steps; 0 for after each epoch alone.
        log_steps: progress is reported every so many steps.
        fsdp: whether each worker holds a share of every layer, not whole ones; of several workers.
        keep_every: the backbone is kept, to be tried, before the first step and every so many; 0 for never.
    """

    epochs: Annotated[int, Field(ge=1)] = 10
    steps: Annotated[int, Field(ge=1)] | None = None
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    batch_size: Annotated[int, Field(ge=1)] = 64
    accumulation: Annotated[int, Field(ge=1)] = 1
    warmup: NotNegative = 0.06
    weight_decay: NotNegative = 0.01
    adam_epsilon: NotNegative = 1e-6
    max_grad_norm: NotNegative = 1.0
    mask_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    masks: Masks = "tokens"
    all_masks: bool = False
    generator_size: Annotated[float, Field(gt=0, le=1)] = 0.25
    discriminator_weight: NotNegative = 50.0
    seed: Seed = 0
    save_steps: Annotated[int, Field(ge=0)] = 0
    save_minutes: NotNegative = 10.0
    evaluate_steps: Annotated[int, Field(ge=0)] = 0
    log_steps: Annotated[int, Field(ge=1)] = 50
    keep_every: Annotated[int, Field(ge=0)] = 0
    fsdp: bool = False

    def of(self, objective: ObjectiveName) -> PretrainingSettings:
        """With the objective's learning rate, unless one is given."""
        return self.model_copy(update={"learning_rate": self.learning_rate or LEARNING_RATES[objective]})

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 0.

        Example:
            >>> [PretrainingSettings(learning_rate=1.0, warmup=2).rate(step, 6) for step in range(6)]
            [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
        """
        assert self.learning_rate is not None
        warmup = min(self.warmup if self.warmup >= 1 else math.ceil(self.warmup * steps), steps)
        if step < warmup:
            return self.learning_rate * (step + 1) / warmup
        return self.learning_rate * (steps - step) / max(1, steps - warmup)


class PretrainingPoint(PretrainingSettings):
    """The numbers of a run, and its objective: what a search can vary."""

    objective: ObjectiveName | None = None


class PretrainingRun(PretrainingPoint):
    """A run on the texts of a study.

    Attributes:
        out: a new or empty folder for the new backbone.
        objective: guess ``masked`` tokens, tell replaced ones (``electra``), or guess the next ones (``causal``); None
            for what the backbone can.
        tracking: MLflow's URI; None for ``$MLFLOW_TRACKING_URI``, else a file beside ``out``.
        workers: processes that train together on Ray, each on its share of a batch of ``batch_size`` rows for each of
            them. A single one needs no Ray.
        cpus_per_worker: None for an equal share of this machine's, and 1 on a cluster.
        gpus_per_worker: None for 1 where this machine has a GPU, else 0.
    """

    out: Path
    tracking: str | None = None
    workers: Annotated[int, Field(ge=1)] = 1
    cpus_per_worker: Annotated[int, Field(ge=1)] | None = None
    gpus_per_worker: Annotated[int, Field(ge=0, le=1)] | None = None

    @property
    def settings(self) -> PretrainingSettings:
        """The numbers alone."""
        return PretrainingSettings(**self.model_dump(include=set(PretrainingSettings.model_fields)))


class PretrainingConfig(PretrainingRun):
    """A run on text files: a whole pretraining file.

    Attributes:
        texts: one file, or several.
        backbone: what to go on from: a hub id, or a folder.
        columns: of files with columns, those that hold texts.
        documents: what ends a document of a plain text file.
        max_length: most tokens of a row.
        pack: whether rows are filled across documents; otherwise each document begins one.
        cache: a folder that keeps tokenized texts for further runs.
        processes: that tokenize; None for one on each CPU.
        search_space, search: what ``tutti tune`` varies, and how; without effect on a single run.
    """

    texts: Annotated[tuple[Path, ...], Field(min_length=1)]
    backbone: str
    columns: Annotated[tuple[str, ...], Field(min_length=1)] = ("text",)
    documents: DocumentEnd = "line"
    max_length: Annotated[int, Field(ge=4)] = 128
    pack: bool = True
    cache: Path | None = None
    processes: Annotated[int, Field(ge=1)] | None = None
    search_space: SearchSpace = SearchSpace()
    search: PretrainingSearch = PretrainingSearch()

    @property
    def backbones(self) -> tuple[str, ...]:
        """What trials may go on from."""
        varied = self.search_space.root.get("backbone")
        if not isinstance(varied, Categorical):
            return (self.backbone,)
        return tuple(dict.fromkeys([*map(str, varied.choices), *([self.backbone] if varied.when else [])]))

    @property
    def trial_evaluations(self) -> tuple[int, int]:
        """After how many steps a trial of the search is evaluated each time, and how often in all."""
        assert self.steps is not None
        every = self.evaluate_steps or math.ceil(self.steps / 8)
        return every, math.ceil(self.steps / every)

    def with_point(self, parameters: Mapping[str, Any]) -> PretrainingConfig:
        """With a trial's values."""
        return self.model_copy(update=dict(parameters))

    @field_validator("texts", "columns", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return [value] if isinstance(value, str | Path) else value


Options = TypeVar("Options", bound=PretrainingRun)


def is_pretraining_file(file: Path) -> bool:
    """Whether a YAML file has a pretraining file's keys, and not a study's tasks."""
    if not file.is_file():
        return False
    raw = read_mapping(file, kind="study or pretraining file")
    return "tasks" not in raw and not {"texts", "out"}.isdisjoint(raw)


def output_of(file: Path) -> Path:
    """What the run of a pretraining file writes.

    Raises:
        ConfigError: with every fault of the file.
    """
    return load_pretraining(PretrainingConfig, file, {}, option=str).out


def load_pretraining(
    model: type[Options],
    source: Path | str | Mapping[str, Any] | None,
    options: Mapping[str, Any],
    *,
    option: Callable[[str], str],
    overrides: Sequence[str] = (),
    shared: bool = False,
) -> Options:
    """Loads and validates what is set of a run; every path is made absolute.

    Args:
        model: ``PretrainingConfig``, or ``PretrainingRun`` on the texts of a study.
        source: a YAML file, with paths relative to its folder, or its content as a mapping, or none.
        options: keys that take the place of those in ``source``, with paths relative to the current folder; None
            removes one.
        option: names an option in messages, by its key.
        overrides: the arguments of ``--set``, with paths relative to the file's folder.
        shared: whether the run will be on a cluster whose storage, the folder of ``out``, this machine need not see.

    Raises:
        ConfigError: with every fault: a wrong, missing or unknown key, or a file that is not there.
    """
    name = str(source) if isinstance(source, Path | str) else "the options"
    raw = read_mapping(Path(source), kind="pretraining file") if isinstance(source, Path | str) else dict(source or {})
    folder = Path(source).parent if isinstance(source, Path | str) else Path.cwd()
    places = Places(name)
    faults = override(raw, overrides, places)

    def what(key: str) -> str:
        given = source is None or key.split(".")[0] in options
        return option(key) if given and key else places.what(key)

    left, of_paths = resolve_pretraining(
        {key: value for key, value in raw.items() if key not in options}, folder=folder, what=what, shared=shared
    )
    given, more = resolve_pretraining(
        {key: value for key, value in options.items() if value is not None}, folder=Path.cwd(), what=what
    )
    raw = {**left, **given}
    faults += of_paths + more + [Fault(what(key), *phrase) for key, *phrase in odd_values(raw)]
    if raw.get("fsdp") is True and raw.get("workers", 1) == 1:
        rule, remedy = "be at least 2 with fsdp, which shares each layer out", "set it, or take fsdp out"
        faults.append(Fault(what("workers"), rule, "1", remedy))
    faults += pretraining_search_faults(raw, settings=PretrainingPoint, what=what)
    config = None
    try:
        config = model.model_validate(raw)
    except ValidationError as error:
        known = {fault.what for fault in faults}
        faults += [each for each in faults_of(error, raw=raw, model=model, what=what) if each.what not in known]
    if faults or config is None:
        raise ConfigError(*faults)
    return config
