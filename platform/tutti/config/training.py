"""The keys of ``training:`` that are Tutti's own. All others are fields of ``transformers.TrainingArguments``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from tutti.config.strict import Strict
from tutti.config.task_files import Name
from tutti.records import TextLimit

Share = Annotated[float, Field(ge=0, lt=1)]
Weights = dict[Name, Annotated[float, Field(gt=0)]]
LIMIT_KEYS = ("max_length", "truncation", "stride", "swap", "target_max_len", "train_on_source", "head")
"""The keys on which the encoding of texts depends."""


class TrainingOptions(Strict):
    """Options of a trial beyond TrainingArguments; a search space may vary each of them except ``stages``,
    ``best_by`` and ``evals_per_epoch``: those of single stages as ``stages.N.KEY``, weights of single tasks as
    ``task_weights.NAME``.

    Attributes:
        max_length: maximum input length in tokens; ``truncation`` says what becomes of longer inputs.
        truncation: ``longest_first`` keeps the first tokens, of a pair by cutting the longer text first, as does
            ``head``; ``only_first`` and ``only_second`` cut that text of a pair alone; ``tail`` keeps the last tokens;
            ``head_tail`` the first and the last, half of each (arXiv 1905.05583); ``windows`` cuts nothing: it makes
            several inputs of a row, whose pooled states are averaged before the head's linear layer (arXiv
            1910.10781). Of a pair, the longer text alone has windows.
        stride: least number of tokens that neighbouring windows share, at most half of those that a window has for the
            text; None for a quarter of max_length.
        swap: whether a pair is predicted in both orders, the mean of which counts; it is trained on as it is.
        batching: ``padded`` gives each row of a batch as many tokens as the longest has; ``packed`` lays rows end to
            end in one sequence of fixed length, in which attention keeps them apart: of per_device_train_batch_size
            rows on average, or of max_tokens_per_batch tokens, but as long as the longest row at least.
        target_max_len: maximum tokens of a text to be written, in tasks of texts; max_length is then the prompt's.
        train_on_source: whether the tokens of prompts are learnt too.
        group_by_length: whether padded batches are made of rows of similar length, which reduces padding.
        max_tokens_per_batch: maximum tokens per batch on each worker, padding included. If set, it determines the
            number of rows per batch instead of per_device_train_batch_size.
        task_sampling: how often batches of a task occur: ``proportional`` (every row once per epoch), ``temperature``
            (in proportion to the task's batch count to the power of 1 / sampling_temperature), ``uniform`` (every task
            equally often), ``weights`` (in proportion to sampling_weights). It does not change the number of batches
            per epoch.
        pooling: how token vectors are combined: ``attention`` (Lin et al. 2017, one learned query per task), ``cls``
            (the first token), ``pooler`` (the backbone's own pretrained layer on the first token, as BERT's), ``last``
            (the last token), ``mean`` (over tokens other than padding), or ``pair`` or
            ``bi_encoder`` (arXiv 1705.02364: the means of a pair's two texts, their difference and product; ``mean``
            for single texts). ``bi_encoder`` encodes each of the two texts alone. None for ``attention``, and ``last``
            with a decoder.
        pooling_layers: number of last encoder layers that are summed with learned weights before pooling.
        head: ``linear``, drawn at random; or ``verbalizer`` (PET, arXiv 2001.07676), which starts from what a
            decoder's language-model head says of each class's word, or each candidate's letter, as the next token.
        words: the word of each class, for the heads of all tasks whose classes they are.
        pooling_dropout: dropout probability of token states before they are pooled.
        head_dropout: dropout probability after pooling, before each head's linear layer.
        head_dropout_samples: multi-sample dropout (arXiv 1905.09788): number of masks over whose losses the mean is
            taken.
        ordered_head: what ordered classes learn: ``softmax`` (each class's probability), ``regression`` (one number,
            the class's place) or ``corn`` (arXiv 2111.08851: for each class, whether a row is above it).
        tag_head: what tags of words or characters learn: ``softmax``, each by itself, or ``crf``, a linear chain.
        pair_loss: what pairs of a better and a worse text learn: ``logistic``, the log-odds of which is better, or
            ``margin``, values that are 1 apart.
        word_pooling: which tokens stand for a word that has a tag: the ``first``, the ``last`` or their ``mean``; None
            for the first, and the last with a decoder.
        task_weights: factor of each task's loss; 1 for tasks that are not named.
        loss_balancing: ``fixed`` (task_weights only), ``uncertainty`` (arXiv 1705.07115), or ``dynamic`` (dynamic
            weight average, arXiv 1803.10704, from the third epoch of a stage on).
        class_weights: ``balanced`` weights each class by the inverse of its share; None weights all rows equally.
        focal_gamma: exponent of the focal loss (arXiv 1708.02002); 0 is cross-entropy.
        adversarial: ``fgm`` (arXiv 1605.07725, on the word embeddings) or ``awp`` (arXiv 2004.05884, on the weights).
        adversarial_epsilon: size of the perturbation: its norm for fgm (default 1.0), its share of a weight's norm for
            awp (default 0.01).
        adversarial_start: epoch of each stage, from 0, at which adversarial training starts.
        rdrop_alpha: weight of R-Drop's divergence between two dropout masks (arXiv 2106.14448); 0 is off.
        mixout: share of the weights of the encoder's linear layers, and of no others, that each step replaces by their
            values at the start of the stage (arXiv 1909.11299), which in the first stage are the pretrained ones,
            except in reinitialised layers.
        reinit_layers: number of last encoder layers that are reinitialised (arXiv 2006.05987).
        ema_decay: decay of an exponential moving average of the weights, which replaces them for evaluation and
            checkpoints; None is off.
        ema_warmup: whether the average soon forgets the weights at the start; otherwise its decay is the same from the
            first step on.
        swa_epochs: number of last epochs over whose weights a plain mean is taken, which replaces them for evaluation
            and checkpoints (arXiv 1803.05407); 0 is off.
        layer_lr_decay: factor of the learning rate from each encoder layer to the one below it; 1 is off.
        head_learning_rate: learning rate of the heads; None for learning_rate.
        freeze_encoder: whether only the heads are trained.
        stages: training keys of each stage, which override all others. Each stage starts from the best weights of the
            stages before it. Empty for a single stage.
        adapter: ``lora`` (arXiv 2106.09685) trains low-rank updates of linear layers instead of the weights.
        lora_r: rank of the updates.
        lora_alpha: the updates are scaled by lora_alpha / lora_r.
        lora_dropout: dropout probability before the updates.
        lora_targets: names of the linear layers that are updated, such as q_proj and v_proj, as a list or a text with
            spaces between them; None for all.
        lora_layers: number of last layers of the backbone that are updated; None for all.
        use_rslora: whether the updates are scaled by lora_alpha / sqrt(lora_r) (arXiv 2312.03732).
        use_dora: whether the length of each column of weights is trained apart from its direction (arXiv 2402.09353).
        weights: precision of the frozen weights under an adapter that are not quantised; None for float32, or with
            ``bits`` for that of the trial. Adapter, heads and optimizer have float32.
        bits: number of bits of the quantised encoder weights under an adapter (QLoRA, arXiv 2305.14314).
        double_quant: whether the quantisation constants are quantised too.
        quant_type: data type of 4-bit weights.
        attn_implementation: as in ``from_pretrained``, such as sdpa or flash_attention_2. None for its default, except
            eager for training steps on a CPU in bfloat16 with attention dropout.
        best_by: which evaluation's weights a trial keeps, and with them its score: the one with the best ``score``, or
            with the lowest validation ``loss``: the mean over tasks, weighted as in the score, of numbers in units of
            the training labels' spread.
        early_stopping_patience: evaluations without a better score (``best_by``) after which a stage ends, and with the
            last stage the trial; None trains all epochs.
        early_stopping_threshold: by how much a score must exceed the best one to be better in this sense.
        evals_per_epoch: evaluations, and reports, per epoch, at about equal distances.
        state_steps: number of optimizer steps between two resume checkpoints, in addition to those after evaluations;
            by default only these are saved.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    max_length: Annotated[int, Field(ge=8)] = 128
    truncation: Literal["longest_first", "only_first", "only_second", "head", "tail", "head_tail", "windows"] = (
        "longest_first"
    )
    stride: Annotated[int, Field(ge=0)] | None = None
    swap: bool = False
    batching: Literal["padded", "packed"] = "padded"
    target_max_len: Annotated[int, Field(ge=1)] = 256
    train_on_source: bool = False
    group_by_length: bool = True
    max_tokens_per_batch: Annotated[int, Field(ge=8)] | None = None
    task_sampling: Literal["proportional", "temperature", "uniform", "weights"] = "proportional"
    sampling_temperature: Annotated[float, Field(ge=1)] = 2.0
    sampling_weights: Weights = Field(default_factory=dict)
    pooling: Literal["attention", "cls", "pooler", "last", "mean", "pair", "bi_encoder"] | None = None
    pooling_layers: Annotated[int, Field(ge=1)] = 1
    head: Literal["linear", "verbalizer"] = "linear"
    words: dict[str | int, str] = Field(default_factory=dict)
    pooling_dropout: Share = 0.0
    head_dropout: Share = 0.1
    head_dropout_samples: Annotated[int, Field(ge=1)] = 1
    ordered_head: Literal["softmax", "regression", "corn"] = "softmax"
    tag_head: Literal["softmax", "crf"] = "softmax"
    pair_loss: Literal["logistic", "margin"] = "logistic"
    word_pooling: Literal["first", "last", "mean"] | None = None
    task_weights: Weights = Field(default_factory=dict)
    loss_balancing: Literal["fixed", "uncertainty", "dynamic"] = "fixed"
    class_weights: Literal["balanced"] | None = None
    focal_gamma: Annotated[float, Field(ge=0)] = 0.0
    adversarial: Literal["fgm", "awp"] | None = None
    adversarial_epsilon: Annotated[float, Field(gt=0)] | None = None
    adversarial_start: Annotated[float, Field(ge=0)] = 0.0
    rdrop_alpha: Annotated[float, Field(ge=0)] = 0.0
    mixout: Share = 0.0
    reinit_layers: Annotated[int, Field(ge=0)] = 0
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    ema_warmup: bool = True
    swa_epochs: Annotated[int, Field(ge=0)] = 0
    layer_lr_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    head_learning_rate: Annotated[float, Field(gt=0)] | None = None
    freeze_encoder: bool = False
    stages: tuple[dict[str, Any], ...] = ()
    adapter: Literal["lora"] | None = None
    lora_r: Annotated[int, Field(ge=1)] = 16
    lora_alpha: Annotated[float, Field(gt=0)] = 32.0
    lora_dropout: Share = 0.05
    lora_targets: list[str] | str | None = None
    lora_layers: Annotated[int, Field(ge=1)] | None = None
    use_rslora: bool = False
    use_dora: bool = False
    weights: Literal["float32", "bfloat16"] | None = None
    bits: Literal[4, 8] | None = None
    double_quant: bool = True
    quant_type: Literal["nf4", "fp4"] = "nf4"
    attn_implementation: str | None = None
    best_by: Literal["score", "loss"] = "score"
    early_stopping_patience: Annotated[int, Field(ge=1)] | None = None
    early_stopping_threshold: Annotated[float, Field(ge=0)] = 0.0
    evals_per_epoch: Annotated[int, Field(ge=1)] = 1
    state_steps: Annotated[int, Field(ge=1)] | None = None

    @property
    def limit(self) -> TextLimit:
        """How long inputs are. Equal values mean equal encodings."""
        stride = self.max_length // 4 if self.stride is None else self.stride
        return TextLimit(
            self.max_length,
            "longest_first" if self.truncation == "head" else self.truncation,
            stride if self.truncation == "windows" else 0,
            self.swap,
            self.target_max_len,
            self.train_on_source,
            letters=self.head == "verbalizer",
        )

    def violated_rules(self) -> list[str]:
        """The rules about combinations of options that these violate, each written to follow "must"."""
        rules = (
            (self.bits and not self.adapter, "have an adapter where bits is set: quantised weights cannot be trained"),
            (
                self.weights == "bfloat16" and not self.adapter,
                "have an adapter with `weights: bfloat16`, in which steps of training would be rounded away",
            ),
            (self.swa_epochs and self.ema_decay, "have one of swa_epochs and ema_decay, not both"),
            (self.mixout and self.adapter, "have no mixout with an adapter, which leaves the weights as they are"),
            (self.reinit_layers and self.adapter, "have no reinit_layers with an adapter, which would not train them"),
            (
                self.adversarial == "fgm" and (self.adapter or self.freeze_encoder),
                "have no `adversarial: fgm` where the word embeddings are not trained",
            ),
            (self.adversarial == "awp" and self.freeze_encoder, "have no `adversarial: awp` with freeze_encoder"),
            (
                self.task_sampling == "weights" and not self.sampling_weights,
                "have sampling_weights with `task_sampling: weights`",
            ),
            (
                self.head == "verbalizer" and (self.pooling not in (None, "last") or self.pooling_layers > 1),
                "have `pooling: last` and one of pooling_layers with `head: verbalizer`, which reads the next token",
            ),
            (
                self.batching == "packed" and (self.truncation == "windows" or self.pooling == "bi_encoder"),
                "have neither `truncation: windows` nor `pooling: bi_encoder` with `batching: packed`, in which each "
                "row is one input",
            ),
            (self.limit.stride > self.max_length // 2, "have a stride of at most half of max_length"),
        )
        return [rule for violated, rule in rules if violated]


def limit_of(training: Mapping[str, Any]) -> TextLimit:
    """How long inputs are, and what becomes of longer ones, according to training keys."""
    return TrainingOptions(**{key: training[key] for key in LIMIT_KEYS if key in training}).limit
