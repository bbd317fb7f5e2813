"""The fields of TrainingArguments that a study file may not set, each with the reason."""

from __future__ import annotations

from collections.abc import Mapping

_REASONS = {
    "every trial has a folder of its own": "output_dir logging_dir",
    "Tutti trains, evaluates and predicts in every trial": "do_train do_eval do_predict",
    "Tutti evaluates every task evals_per_epoch times an epoch, in the precision of training": "eval_strategy "
    "evaluation_strategy evaluate_during_training eval_steps eval_delay "
    "eval_on_start eval_accumulation_steps eval_do_concat_batches eval_use_gather_object batch_eval_metrics "
    "include_for_metrics prediction_loss_only bf16_full_eval fp16_full_eval",
    "Tutti keeps the checkpoint that best_by says": "load_best_model_at_end metric_for_best_model "
    "greater_is_better save_strategy save_steps save_total_limit save_only_model save_on_each_node "
    "enable_jit_checkpoint",
    "Tutti goes on from the newest whole state by itself": "resume_from_checkpoint ignore_data_skip "
    "restore_callback_states_from_checkpoint",
    "Tutti shows trials in MLflow and in its own table": "report_to run_name project trackio_space_id "
    "trackio_bucket_id trackio_static_space_id disable_tqdm include_num_input_tokens_seen log_on_each_node "
    "log_level log_level_replica skip_memory_metrics",
    "nothing is pushed to a hub": "push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push "
    "hub_revision",
    "Ray starts the workers, as many as resources.workers says": "local_rank ddp_backend ddp_timeout "
    "ddp_find_unused_parameters ddp_broadcast_buffers ddp_static_graph parallelism_config accelerator_config",
    "Tutti shards weights by FSDP, with `fsdp: true`": "deepspeed",
    "Tutti draws batches of one task each, in the same order on every machine": "train_sampling_strategy "
    "length_column_name remove_unused_columns label_names dataloader_drop_last auto_find_batch_size "
    "dataloader_in_order dataloader_multiprocessing_context",
    "Tutti normalises the loss over all workers": "average_tokens_across_devices",
    "a loss that is not finite ends the trial": "logging_nan_inf_filter debug",
    "it serves models that generate text": "use_cache use_liger_kernel liger_kernel_config",
}
SET_BY_TUTTI: Mapping[str, str] = {key: reason for reason, keys in _REASONS.items() for key in keys.split()}
