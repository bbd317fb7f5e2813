"""Pretrains a backbone on texts, without labels, before fine-tuning: from random weights, or goes on from others'.

Task-adaptive pretraining (Gururangan et al. 2020, arXiv 2004.10964) is that on a study's own texts.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from tutti.config.pretraining import ObjectiveName, PretrainingConfig, PretrainingSettings
from tutti.data.corpus import Corpus, CorpusOptions, corpus_of_rows, load_corpus
from tutti.data.distinct import distinct_rows, tokens_sha256
from tutti.data.encode import EncodedPart, load_tokenizer
from tutti.data.known_tokens import check_known, check_vocabulary
from tutti.errors import BackboneError, Fault, StudyError
from tutti.files import new_folder_fault, resolved, storage_faults, whole_folder, write_whole
from tutti.modeling.adapters import backbone_files
from tutti.modeling.checkpoint import tensor_faults
from tutti.modeling.layers import token_types, tokens
from tutti.modeling.model import no_progress_bars
from tutti.modeling.positions import positions
from tutti.records import TrialState
from tutti.tracking.protocol import Tracker
from tutti.training.machine.precision import fastest
from tutti.training.machine.ranks import from_rank_zero, rank, world_size
from tutti.training.machine.sharding import whole_state
from tutti.training.pretraining.causal import Causal
from tutti.training.pretraining.electra import Electra
from tutti.training.pretraining.kept import keep, kept_folder
from tutti.training.pretraining.language_model import objective_of
from tutti.training.pretraining.loop import Loop, Progress
from tutti.training.pretraining.masked import Masked
from tutti.training.pretraining.objective import Objective
from tutti.training.pretraining.states import States

_SETTINGS = "settings.json"
# Settings without effect on the weights.
_MAY_CHANGE = {"save_steps", "save_minutes", "evaluate_steps", "log_steps", "keep_every"}


@dataclass(frozen=True)
class TextFiles:
    """Texts to pretrain on.

    Attributes:
        options: ``whole_words`` and ``seed`` are set by the settings of the run.
        cache: the folder of tokenized corpora; None for the run's own, removed at its end.
        processes: that tokenize.
    """

    files: tuple[Path, ...]
    options: CorpusOptions = field(default_factory=CorpusOptions)
    cache: Path | None = None
    processes: int = 1

    @classmethod
    def of(cls, config: PretrainingConfig, *, cache: Path | None = None) -> TextFiles:
        """The texts of a pretraining file; ``cache`` where it names none."""
        options = CorpusOptions(config.columns, config.documents, config.max_length, config.pack)
        return cls(config.texts, options, config.cache or cache, config.processes or os.cpu_count() or 1)


@dataclass(frozen=True)
class Pretrained:
    """The result of pretraining.

    Attributes:
        path: the folder of the new backbone.
        documents: the number of distinct documents, or rows of a study, including held-out ones.
        loss: of held-out rows: the mean cross-entropy of masked, or of all, tokens in nats; with ELECTRA that of the
            generator and 50 times the discriminator's.
        measures: of held-out rows, such as ``held_out_discriminator_accuracy``.
    """

    path: Path
    documents: int
    loss: float
    measures: Mapping[str, float]


def pretrain(
    *,
    backbone: str,
    texts: TextFiles | Sequence[EncodedPart],
    out: Path,
    settings: PretrainingSettings,
    objective: ObjectiveName | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_notice: Callable[[str], None] = lambda sentence: None,
    make_tracker: Callable[[str], Tracker] | None = None,
) -> Pretrained:
    """Trains the backbone on texts; saves it with its tokenizer to ``out``.

    In an initialized ``torch.distributed`` group every rank calls it, and all of them see the same files; rank 0 tells
    progress, and writes. ``encode_texts`` is to be called before by one process alone.

    Equal texts count once. An interrupted run goes on from its last state, saved in ``OUT.unfinished``, and ends with
    the same weights as an undisturbed one on the same CPU.

    Args:
        backbone: a hub id or folder; a missing head is initialised randomly.
        texts: text files, or a study's rows.
        out: a new or empty folder, to be named as ``backbone:`` in a study file. ELECTRA's generator is in its folder
            ``generator``.
        objective: None for what the backbone can.
        make_tracker: makes what logs the run, from an id that stays the same if the run goes on.

    Raises:
        BackboneError: if the backbone does not load or has no form for the objective, or ``out`` is no
            new or empty folder.
        StudyError: if ``OUT.unfinished`` belongs to a run with other texts or settings, or a text file is no such file.
        TrialError: if the loss is not finite, or no token of the held-out rows can be masked.
        StorageError: if a file cannot be written.

    Example:
        >>> pretrain(  # doctest: +SKIP
        ...     backbone="tiny",
        ...     texts=TextFiles((Path("texts.txt"),)),
        ...     out=Path("made"),
        ...     settings=PretrainingSettings(epochs=2),
        ... )
    """
    if fault := new_folder_fault(out):
        raise BackboneError(fault)
    out = resolved(out)
    unfinished = _unfinished(out)
    tokenizer = load_tokenizer(backbone)
    name = objective or objective_of(backbone)
    settings = settings.of(name)
    set_seed(settings.seed)
    device = _device()
    learner = _make_objective(name, backbone, tokenizer=tokenizer, settings=settings, longest=_longest(texts))
    _check_backbone(learner, texts, tokenizer=tokenizer, backbone=backbone)
    corpus = _load(texts, tokenizer, unfinished=unfinished, settings=settings)
    identity = settings.model_dump(exclude=_MAY_CHANGE)
    identity |= {"backbone": backbone, "files": backbone_files(backbone), "texts": corpus.identity, "objective": name}
    identity["batch_size"] *= world_size()  # half as many workers may go on with twice the rows
    precision = fastest(device, model_type=learner.model_type, training={})
    kept = kept_folder(out) if settings.keep_every else None
    begun = from_rank_zero(lambda: _begin(unfinished, identity, precision=precision, kept=kept))
    states = States(unfinished / "states", on_notice=on_notice)
    tracker = make_tracker(begun["run"]) if make_tracker and rank() == 0 else None
    parameters = {key: value for key, value in identity.items() if key not in ("files", "texts")}

    def report(progress: Progress) -> None:
        log(progress)
        on_progress(progress)

    def whole() -> Objective | None:
        """What is trained, with whole weights, on rank 0. Every rank calls it."""
        weights = whole_state(learner.module.state_dict()) if settings.fsdp else {}
        if not settings.fsdp or rank():
            return None if rank() else learner
        made = _make_objective(name, backbone, tokenizer=tokenizer, settings=settings, longest=_longest(texts))
        made.module.load_state_dict(weights)
        return made

    def keep_whole(step: int) -> None:
        if made := whole():
            keep(out, step, lambda folder: made.save(folder, tokenizer))

    with (
        tracked(tracker, parameters | {"texts": corpus.identity, "documents": corpus.documents}) as log,
        tensor_faults(unfinished),
    ):
        loop = Loop(
            objective=learner,
            corpus=corpus,
            settings=settings,
            states=states,
            device=device,
            precision=begun["precision"],
            pad=tokenizer.pad_token_id,
            report=report,
            keep=keep_whole,
        )
        measures = loop.train()
        log.end(measures)
    if trained := whole():
        with tensor_faults(out), whole_folder(out) as folder, no_progress_bars():
            trained.module.to("cpu")
            trained.save(folder, tokenizer)
        shutil.rmtree(unfinished, ignore_errors=True)
    return Pretrained(out, corpus.documents, measures["held_out_loss"], measures)


def encode_texts(texts: TextFiles, *, backbone: str, out: Path, settings: PretrainingSettings) -> None:
    """Tokenizes text files for a run of several ranks, which could not wait for one of them for hours.

    Raises:
        StudyError, BackboneError, StorageError: as ``load_corpus`` does.
    """
    _load(texts, load_tokenizer(backbone), unfinished=_unfinished(out), settings=settings)


def _unfinished(out: Path) -> Path:
    return resolved(out).with_name(f"{resolved(out).name}.unfinished")


def _device() -> torch.device:
    """The first GPU that this process sees; of several ranks on a node each takes the one of its local number."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local = int(os.environ.get("LOCAL_RANK", "0")) if world_size() > 1 else 0
    device = torch.device("cuda", local % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _make_objective(
    name: ObjectiveName, backbone: str, *, tokenizer: Any, settings: PretrainingSettings, longest: int
) -> Objective:
    if name == "causal":
        return Causal(backbone, tokenizer=tokenizer, longest=longest)
    return (Masked if name == "masked" else Electra)(backbone, tokenizer=tokenizer, settings=settings)


def _longest(texts: TextFiles | Sequence[EncodedPart]) -> int:
    if isinstance(texts, TextFiles):
        return texts.options.max_length
    return max((int(part.lengths.max()) for part in texts if len(part.lengths)), default=0)


def _check_backbone(
    learner: Objective, texts: TextFiles | Sequence[EncodedPart], *, tokenizer: Any, backbone: str
) -> None:
    """Checks that the backbone has an embedding for every token, token type and position that it will be given."""
    model: Any = learner.discriminator.encoder if isinstance(learner, Electra) else learner.module
    check_vocabulary(tokenizer, backbone=backbone, tokens=tokens(model))
    if not isinstance(texts, TextFiles):
        for part in texts:
            check_known(part, where="the texts", backbone=backbone, tokens=None, token_types=token_types(model))
        return
    given = texts.options.max_length
    if not 4 <= given <= (most := max(4, positions(model) or given)):
        rule = f"be at least 4 and at most {most}, the positions that the backbone {backbone} has"
        remedy = "name a number between them"
        raise BackboneError(Fault("--max-length", rule, str(given), remedy))


def _load(
    texts: TextFiles | Sequence[EncodedPart], tokenizer: Any, *, unfinished: Path, settings: PretrainingSettings
) -> Corpus:
    if isinstance(texts, TextFiles):
        options = replace(texts.options, seed=settings.seed, whole_words=settings.masks == "whole-words")
        cache = texts.cache or unfinished / "corpus"
        return load_corpus(texts.files, tokenizer=tokenizer, cache=cache, options=options, processes=texts.processes)
    if settings.masks == "whole-words":
        rule, remedy = "be of text files, given by --texts", "name the files, or take --masks spans"
        raise StudyError(Fault("the texts of --masks whole-words", rule, "a study", remedy))
    rows = distinct_rows(texts)
    return corpus_of_rows(rows, identity=tokens_sha256(rows), seed=settings.seed)


def _begin(folder: Path, identity: Mapping[str, Any], *, precision: str, kept: Path | None) -> dict[str, str]:
    """The id and the precision of the run in this folder, which begins here unless it has begun.

    Raises:
        BackboneError: if one begins, and the folder ``kept`` has the backbones of another.
        StudyError: if the folder belongs to a run with other texts or settings.
    """
    file = folder / _SETTINGS
    if not file.is_file():
        if kept and (fault := new_folder_fault(kept)):
            raise BackboneError(fault)
        begun = {"run": uuid.uuid4().hex, "precision": precision}
        write_whole(file, json.dumps({**begun, "identity": dict(identity)}, indent=1))
        return begun
    with storage_faults(file):
        try:
            saved = json.loads(file.read_text(encoding="utf8"))
            if saved["identity"] == json.loads(json.dumps(dict(identity))):
                return {"run": saved["run"], "precision": saved["precision"]}
        except (ValueError, KeyError, TypeError):
            pass
    remedy = f"call the command as it was, or remove {folder}"
    raise StudyError(Fault(str(folder), "be begun with the same texts, backbone and settings", "others", remedy))


class RunLog:
    """Logs progress as metrics by step; does nothing without a tracker."""

    def __init__(self, tracker: Tracker | None) -> None:
        self._tracker = tracker

    def __call__(self, progress: Progress) -> None:
        if self._tracker:
            self._tracker.log_metrics("", progress.measures, step=progress.step, at=time.time())

    def end(self, measures: Mapping[str, float]) -> None:
        """Ends the run as a finished one."""
        if self._tracker:
            final = {f"final_{name}": value for name, value in measures.items()}
            self._tracker.end_study(state=TrialState.FINISHED, metrics=final)


@contextmanager
def tracked(tracker: Tracker | None, parameters: Mapping[str, Any]) -> Iterator[RunLog]:
    """Begins the run, or goes on with it, and says how it ended; the tracker is closed after it."""
    if tracker is None:
        yield RunLog(None)
        return
    try:
        tracker.start_study(parameters=parameters, tags={"tutti.kind": "pretraining"}, files=[])
        yield RunLog(tracker)
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        tracker.end_study(state=TrialState.INTERRUPTED if interrupted else TrialState.FAILED, metrics={})
        raise
    finally:
        tracker.close()
