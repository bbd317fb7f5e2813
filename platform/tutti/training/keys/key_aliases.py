"""Names that other libraries use for training keys, for suggestions in error messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tutti.errors import nearest


def _by_name(names: Mapping[str, str]) -> dict[str, str]:
    """Each of the names, which spaces separate, to its key."""
    return {name: key for key, several in names.items() for name in several.split()}


# Alias to Tutti's key. No alias is a key itself.
ALIASES = _by_name(
    {
        "learning_rate": "lr rate max_lr peak_lr base_lr",
        "head_learning_rate": "head_lr classifier_lr",
        "layer_lr_decay": "llrd lr_decay layerwise_lr_decay layer_decay layerwise_decay",
        "num_train_epochs": "epochs num_epochs n_epochs max_epochs train_epochs",
        "max_steps": "steps num_steps num_train_steps max_train_steps",
        "per_device_train_batch_size": "batch_size train_batch_size bs per_gpu_train_batch_size",
        "per_device_eval_batch_size": "eval_batch_size val_batch_size test_batch_size per_gpu_eval_batch_size",
        "gradient_accumulation_steps": "accumulation_steps grad_accum accumulate_grad_batches accum_steps",
        "max_grad_norm": "grad_clip clip_grad clip_grad_norm gradient_clip gradient_clip_val max_norm",
        "weight_decay": "wd l2",
        "warmup_steps": "warmup warmup_ratio warmup_proportion num_warmup_steps",
        "lr_scheduler_type": "scheduler lr_scheduler lr_schedule schedule scheduler_type",
        "optim": "optimizer optimiser optimizer_name adafactor adam8bit",
        "optim_args": "optimizer_args optimizer_kwargs optim_kwargs",
        "label_smoothing_factor": "label_smoothing smoothing",
        "focal_gamma": "focal gamma focal_loss",
        "max_length": "max_len max_seq_length max_seq_len sequence_length seq_length maxlen source_max_len",
        "truncation": "long_texts truncation_strategy truncation_side long_text sliding_window",
        "stride": "doc_stride window_stride window_overlap",
        "group_by_length": "length_grouping bucket_by_length",
        "max_tokens_per_batch": "max_tokens token_budget",
        "batching": "packing sample_packing padding_free batch_packing",
        "head_dropout": "dropout classifier_dropout hidden_dropout",
        "pooling_dropout": "pooler_dropout",
        "head_dropout_samples": "multi_sample_dropout dropout_samples",
        "ema_decay": "ema use_ema ema_alpha",
        "swa_epochs": "swa use_swa",
        "adversarial": "fgm awp adversarial_training adv",
        "adversarial_epsilon": "adv_eps adv_epsilon",
        "rdrop_alpha": "rdrop r_drop",
        "reinit_layers": "reinit reinit_n_layers",
        "freeze_encoder": "freeze freeze_backbone freeze_base",
        "pooling": "pooler pooling_type add_pooling_layer",
        "swap": "swap_pairs symmetric",
        "sampling_temperature": "temperature",
        "words": "label_words verbalizer_words",
        "adapter": "lora peft use_lora full_finetune",
        "lora_targets": "lora_modules lora_target_modules target_modules",
        "lora_layers": "layers_to_transform num_lora_layers",
        "use_rslora": "rslora",
        "use_dora": "dora",
        "weights": "dtype torch_dtype model_dtype bnb_4bit_compute_dtype",
        "lora_r": "lora_rank rank r",
        "bits": "load_in_4bit load_in_8bit quantization qlora",
        "quant_type": "bnb_4bit_quant_type",
        "double_quant": "bnb_4bit_use_double_quant use_double_quant",
        "use_cpu": "no_cuda",
        "seed": "random_seed random_state",
        "activation_checkpointing": "grad_checkpointing checkpoint_activations",
        "torch_compile": "compile",
        "bf16": "precision mixed_precision amp",
        "evals_per_epoch": "evaluations_per_epoch val_check_interval",
        "state_steps": "checkpoint_steps",
        "early_stopping_patience": "early_stopping patience es_patience",
        "early_stopping_threshold": "min_delta es_min_delta",
    }
)

# What run_glue.py and the QLoRA script call what a study file says elsewhere than in `training:`, to the key there; to
# "" what it does not say at all, although it sounds like another training key.
_ELSEWHERE = _by_name(
    {
        "backbone": "model_name_or_path model_name config_name tokenizer_name vocab_path vocab_file model_path",
        "tasks": "task_name dataset_name dataset_config_name dataset data_dir data_path",
        "tasks.NAME.train": "train_file",
        "tasks.NAME.validation": "validation_file",
        "tasks.NAME.test": "test_file test_a test_b",
        "tasks.NAME.metric": "metric_name",
        "split.validation": "eval_dataset_size train_val_split_ratio val_ratio valid_ratio split_ratio",
        "split.folds": "folds n_folds num_folds k_folds n_splits",
        "resources.gpus_per_worker": "device gpus num_gpus n_gpu",
        "tasks.NAME.max_train_samples": "max_train_rows max_train_samples",
        "tasks.NAME.layout": "dataset_format data_format",
        "tasks.NAME.extra_train": "pseudo pseudo_labels pseudo_file",
        "": "eval_all_checkpoints max_mmlu_samples pad_to_max_length sample_generate do_sample penalty_alpha",
    }
)


def nearest_key(name: str, known: Sequence[str]) -> str:
    """The remedy for an unknown training key: suggests the key that it is an alias of, or else the most similar key."""
    name = name.lower().replace("-", "_")
    if (place := _ELSEWHERE.get(name)) is not None:
        return f"set {place} in the study file instead" if place else "remove it"
    key = ALIASES.get(name)
    return f"did you mean {key!r}? Correct the name" if key in known else nearest(name, known, otherwise="remove it")
