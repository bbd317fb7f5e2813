"""``tutti backbone``: makes a small backbone with random weights, pretrains one on texts, tries what a run keeps."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tutti.cli.options import Overrides, StudyFile, interruptible, local
from tutti.config.pretraining import DocumentEnd, ObjectiveName, PretrainingRun, is_pretraining_file
from tutti.errors import Fault, StudyError, check_left_out
from tutti.modeling.new_backbone import SMALLEST_VOCABULARY, Architecture, Size, new_backbone
from tutti.modeling.new_tokenizer import TokenizerKind
from tutti.workflows.console import console
from tutti.workflows.probe import newest_kept
from tutti.workflows.study import Study

if TYPE_CHECKING:
    from tutti.training.pretraining.run import Pretrained


def new(
    texts: Annotated[list[Path], typer.Option("--texts", metavar="FILE...", help="Text files; may be repeated.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where to write it.", callback=local)],
    size: Annotated[Size, typer.Option("--size")] = "tiny",
    architecture: Annotated[
        Architecture,
        typer.Option("--architecture", help="A BERT encoder, an ELECTRA discriminator, or a Llama decoder."),
    ] = "encoder",
    tokenizer: Annotated[
        TokenizerKind | None,
        typer.Option(
            "--tokenizer",
            help="unigram finds words in Chinese text, where wordpiece, the default, takes single characters. "
            "Decoders have bytes.",
        ),
    ] = None,
    vocabulary: Annotated[
        int, typer.Option("--vocabulary", min=SMALLEST_VOCABULARY, help="Most entries of the tokenizer.")
    ] = 6_000,
    more: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="Further text files.")] = None,
) -> None:
    """Makes a tokenizer from texts and a backbone with random weights, which `backbone: DIR` of a study file takes.

    Sizes, with a vocabulary of 6,000: tiny (2 layers of 128, 1.2 million weights), mini (4 of 256, 4.8 million), small
    (6 of 384, 13 million); of electra also those published, electra-small, electra-base and electra-large.

    Example: `tutti backbone new --texts data/OCNLI_train.csv data/TNEWS_train.csv --size mini --out backbone`
    """
    made = new_backbone(
        texts=[*texts, *(more or [])],
        size=size,
        out=out,
        architecture=architecture,
        tokenizer=tokenizer,
        vocabulary=vocabulary,
    )
    console.print(
        f"wrote {made.path}: {made.size}, {made.weights / 1e6:.1f} million weights, {made.vocabulary:,} tokens"
    )


def pretrain(
    ctx: typer.Context,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE.yaml]",
            help="A study, whose backbone and texts to take; or these options in a file; or further text files.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where to write the new backbone.", callback=local)
    ] = None,
    texts: Annotated[
        list[Path] | None,
        typer.Option("--texts", metavar="FILE...", help="Text, CSV, TSV, JSON Lines or Parquet; may be repeated."),
    ] = None,
    backbone: Annotated[str | None, typer.Option("--backbone", help="With --texts: what to go on from.")] = None,
    objective: Annotated[
        ObjectiveName | None,
        typer.Option(
            "--objective",
            help="Guess masked tokens, tell replaced ones, or guess the next ones. By default what the backbone can.",
        ),
    ] = None,
    epochs: Annotated[int, typer.Option("--epochs", min=1)] = 10,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="In place of epochs.")] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            "--learning-rate",
            help="By default 1e-4, with electra 5e-4. 1e-3 suits random weights, 2e-3 those of size tiny.",
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Rows of a batch, for each worker.")] = 64,
    accumulation: Annotated[int, typer.Option("--accumulation", min=1, help="Batches of a step.")] = 1,
    warmup: Annotated[float, typer.Option("--warmup", help="Share of the steps; from 1 on, their number.")] = 0.06,
    weight_decay: Annotated[float, typer.Option("--weight-decay")] = 0.01,
    adam_epsilon: Annotated[float, typer.Option("--adam-epsilon")] = 1e-6,
    max_grad_norm: Annotated[float, typer.Option("--max-grad-norm", help="0 for no clipping.")] = 1.0,
    mask_share: Annotated[
        float | None, typer.Option("--mask-share", help="By default 0.15, with a large ELECTRA 0.25.")
    ] = None,
    whole_words: Annotated[bool, typer.Option("--whole-words", help="Mask whole words.")] = False,
    spans: Annotated[bool, typer.Option("--spans", help="Mask spans of words, as SpanBERT does.")] = False,
    all_masks: Annotated[
        bool, typer.Option("--all-masks", help="Replace each chosen token by the mask, not 80% of them.")
    ] = False,
    generator_size: Annotated[
        float, typer.Option("--generator-size", help="The width of ELECTRA's generator, of the discriminator's.")
    ] = 0.25,
    discriminator_weight: Annotated[float, typer.Option("--discriminator-weight")] = 50.0,
    max_length: Annotated[int, typer.Option("--max-length", help="With --texts: most tokens of a row.")] = 128,
    columns: Annotated[
        list[str] | None, typer.Option("--columns", help="With --texts: columns that hold texts, by default text.")
    ] = None,
    documents: Annotated[
        DocumentEnd, typer.Option("--documents", help="With --texts: what ends a document of a plain text file.")
    ] = "line",
    pack: Annotated[
        bool, typer.Option("--pack/--by-document", help="With --texts: fill rows across documents, or not.")
    ] = True,
    cache: Annotated[
        Path | None, typer.Option("--cache", metavar="DIR", help="With --texts: keeps tokenized texts.", callback=local)
    ] = None,
    processes: Annotated[int, typer.Option("--processes", min=1, help="With --texts: that tokenize.")] = (
        os.cpu_count() or 1
    ),
    save_steps: Annotated[int, typer.Option("--save-steps", min=0, help="Save a state every so many steps.")] = 0,
    save_minutes: Annotated[float, typer.Option("--save-minutes", help="Save a state as often as this.")] = 10.0,
    evaluate_steps: Annotated[
        int, typer.Option("--evaluate-steps", min=0, help="Also measure the held-out loss every so many steps.")
    ] = 0,
    log_steps: Annotated[int, typer.Option("--log-steps", min=1, help="Tell progress every so many steps.")] = 50,
    keep_every: Annotated[
        int, typer.Option("--keep-every", min=0, help="Keep the backbone every so many steps, for `backbone probe`.")
    ] = 0,
    tracking: Annotated[
        str | None,
        typer.Option("--tracking", help="MLflow's URI, by default $MLFLOW_TRACKING_URI, else a file in OUT.tracking."),
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", min=1, help="Processes that train together on Ray, each on its part of a batch.")
    ] = 1,
    fsdp: Annotated[bool, typer.Option("--fsdp", help="Share layers out among the workers, by FSDP.")] = False,
    cpus_per_worker: Annotated[
        int | None, typer.Option("--cpus-per-worker", min=1, help="By default their share; on a cluster 1.")
    ] = None,
    gpus_per_worker: Annotated[
        int | None, typer.Option("--gpus-per-worker", min=0, max=1, help="By default 1 where this machine has a GPU.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="With --texts.")] = 0,
    overrides: Overrides = None,
) -> None:
    """Goes on pretraining a backbone on the texts of a study, or on text files. No label is used.

    An encoder learns to guess masked tokens or, as ELECTRA, to tell which ones a small generator replaced; a decoder
    learns to guess the next ones. Of a study all texts are read, those to predict and those without labels too. What is
    written, `backbone: DIR` of a study file takes. The same command goes on where it was cut off.

    Example: `tutti backbone pretrain chinese_trio.yaml --out adapted --epochs 20`

    Example: `tutti backbone pretrain pretraining.yaml --epochs 3`, of these options in a file; one given here counts

    Example: `tutti backbone pretrain --texts news.txt.gz --backbone small --objective electra --out pretrained`
    """
    _set_torch_environment()
    given = {name: value for name, value in ctx.params.items() if _is_given(ctx, name)}
    for name in ("files", "overrides", "spans", "whole_words"):
        given.pop(name, None)
    if spans or whole_words:
        given["masks"] = "spans" if spans else "whole-words"
    with interruptible(lambda _: "Interrupted; the same command continues after the last saved state."):
        made = _pretrain([*(files or ())], given, overrides or ())
    console.print(f"wrote {made.path}: {made.documents:,} different texts, held-out loss {made.loss:.3f}")
    console.print(f"Next: `backbone: {made.path}` in the study file")


def probe(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="What `backbone pretrain --out` names, or the pretraining file.")
    ],
    study_file: StudyFile,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Fine-tunings of each backbone.")] = 1,
    overrides: Overrides = None,
) -> None:
    """Tries the backbones that a pretraining run has kept on a study, also while it goes on: scores over steps.

    Each is fine-tuned with the settings under `training:`, without a search. What was tried before is not tried again.
    A table is printed; RUN.probes/STUDY has it as scores.csv, and a picture.

    Example: `tutti backbone probe adapted chinese_trio.yaml --set training.num_train_epochs=2`
    """
    _set_torch_environment()
    study = Study(study_file, overrides=[*(overrides or ()), f"backbone={json.dumps(str(newest_kept(run)))}"])
    with interruptible(lambda _: "Interrupted; the same command goes on."):
        study.probe(run, seeds=seeds)


def _set_torch_environment() -> None:
    from tutti.cluster.connect import TORCH_ENVIRONMENT

    for name, value in TORCH_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def _pretrain(files: list[Path], given: dict[str, Any], overrides: Sequence[str]) -> Pretrained:
    """Pretrains on the texts of a study, or on text files.

    Args:
        files: a study or a pretraining file, or further text files.
        given: the options that the user has given, by their keys in a pretraining file.

    Raises:
        StudyError: if there is neither a file nor texts and a backbone, or options do not fit to a study.
    """
    from tutti.workflows.pretraining import pretrain

    yaml = next((file for file in files if file.suffix in (".yaml", ".yml")), None)
    if yaml is None or is_pretraining_file(yaml):
        given["texts"] = [*given.get("texts", ()), *(file for file in files if file is not yaml)]
        if not yaml and not (given["texts"] and "backbone" in given):
            got = "texts alone" if given["texts"] else "--backbone alone" if "backbone" in given else "neither"
            rule = "have a study file or a pretraining file, or --texts and --backbone"
            raise StudyError(Fault("`backbone pretrain`", rule, got, "name what is missing"))
        if not given["texts"]:
            del given["texts"]
        return pretrain(yaml, option=_option, **given)
    check_left_out({name: given.get(name[2:]) for name in ("--texts", "--backbone")}, beside=f"the study file {yaml}")
    for name in sorted(given.keys() - PretrainingRun.model_fields.keys()):
        del given[name]
        console.print(f"{_option(name)} has no effect on the texts of a study.")
    return Study(yaml, overrides=overrides).pretrain(given.pop("out", None), option=_option, **given)


def _is_given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _option(key: str) -> str:
    """The option that sets a key of a pretraining file: ``--texts`` for ``texts.0``."""
    return f"--{key.split('.')[0].replace('_', '-')}"
