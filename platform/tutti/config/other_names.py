"""What other tools call the keys of a study file, for suggestions in error messages."""

from __future__ import annotations

from collections.abc import Sequence

from tutti.errors import nearest

_NAMES = {
    "backbone": "model model_name model_name_or_path pretrained_model pretrained_model_name encoder",
    "texts": "text data corpus files train_file train_files",
    "out": "output_dir output out_dir save_dir",
    "learning_rate": "lr",
    "epochs": "num_epochs num_train_epochs n_epochs",
    "steps": "max_steps num_steps train_steps num_train_steps",
    "batch_size": "per_device_train_batch_size train_batch_size",
    "accumulation": "gradient_accumulation_steps grad_accumulation",
    "warmup": "warmup_steps warmup_ratio warmup_proportion",
    "mask_share": "mlm_probability mask_prob masked_lm_prob mask_ratio",
    "max_length": "max_seq_length block_size",
    "tasks": "data dataset datasets task",
    "storage": "output_dir output out_dir save_dir",
    "train": "train_file train_data train_path training_data",
    "max_train_samples": "max_train_rows",
    "repeated_punctuation": "punctuation dedup_punctuation",
    "validation": "val dev valid eval validation_file val_file dev_file test_size val_size valid_size holdout",
    "test": "test_file test_data",
    "extra_train": "extra pseudo_labels pseudo",
    "columns": "text_column text_col label_column label_col target id_column id_col",
    "label": "target labels label_column class y",
    "text": "sentence sentence1 text_column text_a",
    "text_b": "text_pair sentence2 text2",
    "better": "chosen preferred winner more_toxic",
    "worse": "rejected dispreferred loser less_toxic",
    "choices": "options candidates endings choice",
    "metric": "eval_metric scoring score metrics",
    "folds": "n_folds num_folds k_folds n_splits kfold cv",
    "group": "groups group_column",
    "seed": "random_state random_seed",
    "trials": "n_trials num_trials num_samples n_iter max_trials",
    "max_hours": "timeout time_limit time_budget max_time",
    "scheduler": "pruner early_stopping early_stop",
    "objectives": "objective",
    "gpus_per_worker": "gpus gpu num_gpus n_gpus n_gpu",
    "cpus_per_worker": "cpus cpu num_cpus n_cpus",
    "workers": "num_workers n_workers",
    "concurrent_trials": "n_jobs max_concurrent max_concurrent_trials parallel_trials",
    "path": "dir folder output_dir save_dir",
    "uri": "tracking_uri url",
}
_REMEDIES = {
    "metric eval_metric": "set `metric:` of each task",
    "direction maximize minimize": "remove it: a higher score is always better",
    "labels num_labels n_labels classes num_classes n_classes label_names": (
        "remove it: the classes are those of the training rows"
    ),
    "sep separator delimiter": "remove it: the separator is found by the header",
    "device gpus num_gpus n_gpu": "set resources.gpus_per_worker",
    "temperature": "set training.sampling_temperature (of tasks), or `calibration: temperature` in the recipe",
    "train_val_split_ratio val_ratio valid_ratio dev_ratio split_ratio": "set split.validation, a share of the rows",
    "dataset_format data_format file_format format": "set `layout:` of each task; of instructions also `format:`",
    "test_b test_a round2 testb test_b_file": "name it as a set of its task, `test: {a: FILE, b: FILE}`",
    "pseudo pseudo_label pseudo_file pseudo_labels": "name the file under `extra_train:` of its task",
    "vocab_path vocab_file vocab bert_path tokenizer tokenizer_name config_path model_path": (
        "name the folder with model and tokenizer as `backbone:`"
    ),
    "data_dir data_path data_root": "name the files of each task, relative to this file; `tutti new FOLDER` does",
    "eval_all_checkpoints save_steps save_total_limit": (
        "remove it: each epoch is scored, or evals_per_epoch times, and the best weights are kept"
    ),
    "do_train do_eval do_predict do_test mode": "remove it: `tutti tune`, `tutti ensemble` and `tutti predict` do that",
    "fp16 bf16 amp": "write it under `training:`",
    "max_train_rows max_train max_samples nrows n_rows debug": (
        "set max_train_samples, or max_rows for all parts, of each task"
    ),
    "seed random_state": "set split.seed, search.seed or training.seed",
    "learning_rate lr epochs num_epochs batch_size max_length": "write it under `training:`",
}


def nearest_name(name: str, known: Sequence[str]) -> str:
    """The remedy for an unknown key: the known one that other tools call so, its place, or the most similar one."""
    plain = name.lower().replace("-", "_")
    meant = [key for key, names in _NAMES.items() if key in known and plain in names.split()]
    if len(meant) == 1:
        return f"did you mean {meant[0]!r}? Correct the name"
    for names, remedy in _REMEDIES.items():
        if plain in names.split():
            return remedy
    return nearest(name, known, otherwise=f"known here: {', '.join(known)}")
