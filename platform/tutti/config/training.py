"""The keys of ``training:`` that are Tutti's own. All others are fields of ``transformers.TrainingArguments``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tutti.config.study import Name, Strict

Share = Annotated[float, Field(ge=0, lt=1)]
Weights = dict[Name, Annotated[float, Field(gt=0, allow_inf_nan=False)]]


class TrainingOptions(Strict):
    """Switches of a trial beyond TrainingArguments; a search space may vary each of them.

    Attributes:
        max_length: longest input in tokens; what is longer is cut.
        group_by_length: batches hold rows of like length, so that little is padded.
        max_tokens_per_batch: tokens of a batch, padding included, on each worker; it then decides how many rows a batch
            has, in the place of per_device_train_batch_size. None for batches of as many rows each.
        task_sampling: how often a task's batches come: ``proportional`` (every row once an epoch), ``temperature`` (as
            often as its batches to the power of 1 / sampling_temperature), ``uniform`` (each task alike), ``weights``
            (as sampling_weights says). An epoch has as many batches either way.
        pooling: how token vectors become one: ``attention`` (Lin et al. 2017, one learned query for each task), ``cls``
            (the first token), ``mean`` (over tokens that are not padding), or ``pair`` (arXiv 1705.02364: the means of
            a pair's two texts, their difference and product; of single texts ``mean``).
        pooling_layers: the last so many layers of the encoder are summed with learned weights before pooling.
        head_dropout: dropout probability in front of each head.
        head_dropout_samples: multi-sample dropout (arXiv 1905.09788): the head's output is the mean over so many masks.
        task_weights: factor of each task's loss; 1 for a task that is not named.
        loss_balancing: ``fixed`` (task_weights alone), ``uncertainty`` (arXiv 1705.07115), or ``dynamic`` (dynamic
            weight average, arXiv 1803.10704, from the third epoch of a stage on).
        class_weights: ``balanced`` weighs each class by the inverse of its share; none for rows as they are.
        focal_gamma: the focal loss's exponent (arXiv 1708.02002); 0 is cross-entropy.
        adversarial: ``fgm`` (arXiv 1605.07725, on the word embeddings) or ``awp`` (arXiv 2004.05884, on the weights).
        adversarial_epsilon: size of the perturbation: its norm for fgm, its share of a weight's norm for awp; by
            default 1.0 and 0.01.
        adversarial_start: epochs to train before it begins.
        rdrop_alpha: weight of R-Drop's divergence between two dropout masks (arXiv 2106.14448); 0 is off.
        mixout: share of the encoder's weights that stand, at each step, at the value that they had when the stage began
            (arXiv 1909.11299); in the first one the pretrained, and layers that start anew are left out.
        reinit_layers: the last so many layers of the encoder start anew (arXiv 2006.05987).
        ema_decay: decay of the exponential moving average of the weights, which then stands in for them when the trial
            is evaluated and saved; none for no average.
        swa_epochs: the plain mean of the weights after each of the last so many epochs stands in for them
            (arXiv 1803.05407); 0 is off.
        layer_lr_decay: factor of the learning rate from each layer of the encoder to the one below it; 1 is off.
        head_learning_rate: of the heads, also where only they are trained; none for learning_rate.
        freeze_encoder: only the heads are trained.
        stages: training keys of one stage after the other, laid over all others; each stage starts from the best
            weights of those before it. Empty for a single stage.
        adapter: ``lora`` (arXiv 2106.09685) trains low-rank additions to all linear layers in the weights' place.
        lora_r: their rank.
        lora_alpha: their scale is lora_alpha / lora_r.
        lora_dropout: dropout probability in front of them.
        bits: the encoder's own weights are held in so many bits under an adapter (QLoRA, arXiv 2305.14314).
        double_quant: the quantisation's own constants are quantised too.
        quant_type: of 4-bit weights.
        attn_implementation: as ``from_pretrained`` takes it, such as sdpa or flash_attention_2; none for its choice,
            but eager in training steps on a CPU in bfloat16, where attention has dropout.
        evals_per_epoch: a trial is evaluated, and reports, so many times an epoch, after about as many steps each.
        state_steps: a state to go on from is kept every so many optimizer steps too; by default after evaluations.
    """

    max_length: Annotated[int, Field(ge=8)] = 128
    group_by_length: bool = True
    max_tokens_per_batch: Annotated[int, Field(ge=8)] | None = None
    task_sampling: Literal["proportional", "temperature", "uniform", "weights"] = "proportional"
    sampling_temperature: Annotated[float, Field(ge=1)] = 2.0
    sampling_weights: Weights = Field(default_factory=dict)
    pooling: Literal["attention", "cls", "mean", "pair"] = "attention"
    pooling_layers: Annotated[int, Field(ge=1)] = 1
    head_dropout: Share = 0.1
    head_dropout_samples: Annotated[int, Field(ge=1)] = 1
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
    swa_epochs: Annotated[int, Field(ge=0)] = 0
    layer_lr_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    head_learning_rate: Annotated[float, Field(gt=0)] | None = None
    freeze_encoder: bool = False
    stages: tuple[dict[str, Any], ...] = ()
    adapter: Literal["lora"] | None = None
    lora_r: Annotated[int, Field(ge=1)] = 16
    lora_alpha: Annotated[float, Field(gt=0)] = 32.0
    lora_dropout: Share = 0.05
    bits: Literal[4, 8] | None = None
    double_quant: bool = True
    quant_type: Literal["nf4", "fp4"] = "nf4"
    attn_implementation: str | None = None
    evals_per_epoch: Annotated[int, Field(ge=1)] = 1
    state_steps: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _switches_fit_together(self) -> TrainingOptions:
        for wrong, rule in (
            (self.bits and not self.adapter, "have an adapter where bits is set: quantised weights cannot be trained"),
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
        ):
            if wrong:
                raise ValueError(rule)
        return self
