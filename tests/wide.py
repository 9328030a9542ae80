"""Wide tables of cases: a few of each run with all tests, the others are campaigns.

`python -m pytest` runs what is named here as kept; `python -m pytest -m campaign` the rest, as CI does after it.
"""

from __future__ import annotations

from collections import Counter

import pytest

# A test, or a file -> the ids of its cases that run with all tests. What has none is shown there by another test.
KEPT: dict[str, tuple[str, ...]] = {
    # The proof against one device; test_verify.py and test_tasks.py have the MLP and models of their own.
    "tests/verify/test_table.py::test_the_mesh_computes_what_one_device_computes": (),
    "tests/verify/test_jax.py::test_the_mesh_equals_plain_keras_on_one_device": ("mlp",),
    "tests/verify/test_jax.py::test_in_parts_and_with_averages_the_mesh_equals_one_device": (),
    "tests/verify/test_jax.py::test_bfloat16_is_held_against_bfloat16_on_one_device_and_a_wrong_gradient_is_seen": (),
    "tests/verify/test_parity.py::test_two_sound_engines_agree": (),  # as what a wrong one is told from
    "tests/verify/test_jax.py::test_it_verifies_where_tensorflow_is_not_installed": (),  # it trains there too
    "tests/verify/test_jax.py::test_a_side_loads_no_tensorflow_where_it_is_installed": (),
    "tests/verify/test_verify.py::test_rules_on_two_axes_are_verified_over_several_calls": (),
    "tests/verify/test_verify.py::test_batch_statistics_and_every_slot_are_compared": (),
    "tests/verify/test_verify.py::test_a_gradient_scaled_by_the_axis_size_is_seen_by_name": (),
    "tests/verify/test_verify.py::test_batch_statistics_kept_local_are_seen_by_name": (),
    "tests/verify/test_verify.py::test_training_that_verifies_first_records_it_and_then_trains": (),
    "tests/verify/test_verify.py::test_training_that_verifies_first_does_not_begin_on_a_wrong_engine": (),
    "tests/verify/test_verify.py::test_padding_in_the_mean_is_seen_where_no_batch_of_the_first_steps_has_padding": (),
    "tests/verify/test_verify.py::test_an_error_of_a_users_layer_is_told_in_its_own_words": ("jax",),
    "tests/verify/test_verify.py::test_a_wrong_gradient_of_a_bias_at_the_kink_is_seen_by_name": ("0.125-jax",),
    "tests/verify/test_verify.py::test_a_sound_bias_at_the_kink_is_proven": ("jax",),
    "tests/verify/test_verify.py::test_a_bias_before_a_batch_normalization_is_zero_on_both_sides": ("jax",),
    "tests/verify/test_verify.py::test_a_layer_normalization_along_a_middle_dim_equals_stock_keras": ("jax",),
    "tests/verify/test_tasks.py::test_a_regression_from_a_table_equals_one_device": ("batch4_model2-keras_dtensor",),
    "tests/verify/test_tasks.py::test_a_model_of_two_inputs_equals_one_device": ("batch4_model2-jax",),
    "tests/verify/test_tasks.py::test_a_loss_that_is_scaled_on_the_mesh_is_seen": ("jax",),
    "tests/verify/test_tasks.py::test_a_loss_that_reads_other_rows_equals_one_device": (),
    "tests/verify/test_tasks.py::test_padding_that_a_loss_reads_in_an_evaluation_is_seen": ("jax",),
    "tests/verify/test_tasks.py::test_padding_of_a_training_that_a_loss_reads_is_rejected": (),
    "tests/verify/test_tasks.py::test_a_model_of_two_outputs_equals_one_device": ("jax",),
    "tests/engine/test_rows.py::test_an_evaluation_gives_what_its_examples_give_without_padding": (
        "jax-{'batch': 8}",
    ),
    # Several processes against one; the rest of it, and what starts machines and schedulers, are campaigns.
    "tests/processes/test_training.py::test_several_processes_train_as_one_does_bit_for_bit": (
        "keras_dtensor-mesh=batch4_model2-megatron-2",
    ),
    "tests/processes/test_training.py::test_where_the_sum_has_another_order_losses_stay_within_a_millionth": (),
    "tests/processes/test_data.py::test_rows_are_read_in_proportion_to_what_a_process_needs": (),
    "tests/processes/test_training.py::test_a_loss_that_is_not_finite_goes_back_in_every_process": (),
    "tests/processes/test_training.py::test_early_stopping_takes_the_best_weights_in_every_process": (),
    "tests/processes/test_member.py::test_a_process_that_is_stopped_ends_the_others": (),  # as test_launch.py
    "tests/processes/test_launch.py::"
    "test_a_process_that_is_stopped_before_it_has_come_is_the_end_of_all_in_one_line": (),
    # The engines against Keras, step by step.
    "tests/engine/test_equal_to_one_device.py::test_fifty_steps_on_a_mesh_equal_plain_tf_keras": (),
    "tests/engine/test_equal_to_one_device.py::test_the_same_holds_with_the_all_reduces_left_separate": (),
    "tests/engine/test_jax_equal_to_keras.py": (),  # test_jax_tasks.py is the same for three small models
    "tests/engine/test_jax_layouts.py::test_a_layout_trains_as_one_device_does": (),
    "tests/engine/test_jax_stress.py::test_thousands_of_steps_at_eight_devices_end_well": (),
    "tests/engine/test_jax_environment.py::test_it_trains_where_tensorflow_is_not_installed": (),
    "tests/engine/test_jax_environment.py::test_it_loads_no_tensorflow_where_it_is_installed": (),
    "tests/engine/test_core_dtensor.py::test_modules_on_a_mesh_compute_what_one_device_computes": (),
    "tests/engine/test_core_dtensor.py::test_the_tutorials_slips_are_seen_and_the_corrected_preset_passes": (),
    "tests/engine/test_builders_refused.py::test_a_model_that_can_not_work_is_refused": (
        *("responses", "new_dim", "taken", "frozen-engine=jax"),
    ),
    "tests/engine/test_jax_tasks.py::test_every_task_trains_on_a_mesh_as_keras_does_on_one_device": (
        "axes2-megatron",
    ),
    "tests/engine/test_dtensor_tasks.py::test_inputs_and_tasks_of_any_kind_train_on_a_mesh_as_tf_keras_does": (),
    # Models and settings of users, of which tests/layers has a few of each layer.
    "tests/engine/test_dtensor_models.py::test_a_model_of_stock_layers_trains_on_a_mesh_as_on_one_device": (),
    "tests/engine/test_jax_models.py::test_stock_models_train_on_meshes_as_in_stock_keras_on_one_device": (),
    "tests/model/test_contract.py::test_a_run_trains_what_stock_fit_trains": ("jax-batch8-fsdp",),
    "tests/model/test_contract.py::test_a_constraint_holds_after_training": ("batch8-fsdp-jax",),
    "tests/model/test_contract.py::test_micro_batches_are_constrained_once_a_step": ("jax",),
    "tests/model/test_contract.py::test_what_may_be_packed_is_packed": ("batch8-fsdp-jax",),
    "tests/model/test_contract.py::test_a_constraint_is_applied_where_all_reduces_are_left_separate": (),
    "tests/model/test_inputs.py": (),  # as tests/engine/test_*_tasks.py for two of the networks
    "tests/model/test_dtensor_layers.py": (),
    "tests/model/test_jax_kernel_gradient.py::test_every_kind_of_convolution_has_the_gradients_of_one_device": ("16",),
    "tests/model/test_philox.py::test_jax_draws_the_numbers_that_tensorflow_draws": (),
    # The plan against the program, model by model and layout by layout; see test_program.py.
    "tests/plan/test_exact.py": (),
    "tests/plan/test_command.py::test_parts_of_a_batch_and_averages_of_weights_are_counted": ("jax",),
    "tests/plan/test_program.py::test_a_transformer_under_fsdp_is_planned_to_the_byte": (),
    # Whole runs.
    "tests/run/test_runs.py::test_every_model_and_a_users_own_train_on_eight_devices_as_on_one": (),
    "tests/run/test_runs.py::test_the_canary_sees_stale_moments_where_the_library_lies": (
        *("2-combined-True", "8-separate-False"),
    ),
    "tests/run/test_runs.py::test_a_sweep_runs_meshes_of_different_sizes": (),  # as tests/sweep
    "tests/run/test_runs.py::test_padding_trains_on_every_example_and_any_call_size_gives_the_same": (),
    "tests/run/test_runs.py::test_a_model_sharded_by_rules_gives_what_the_replicated_one_gives": (),  # as verify's
    "tests/run/test_runs.py::"
    "test_a_model_that_reads_what_it_wrote_trains_alike_with_the_all_reduces_combined_and_separate": (),
    "tests/run/test_one_file.py::test_two_trainings_are_equal_whatever_the_environment_says_of_the_backend": (),
    "tests/run/test_one_file.py::test_a_verification_builds_one_model_on_both_sides": (),
    "tests/run/test_one_file.py::test_it_is_planned_and_shown_and_exported_and_resumed": (),
    "tests/run/test_one_file.py::test_on_dtensor_a_layer_of_keras_3_made_at_import_leaves_the_mesh_its_devices": (),
    "tests/run/test_training.py::test_a_run_that_went_back_and_was_resumed_equals_one_at_the_lower_rate": (),
    "tests/run/test_training.py::test_a_model_that_ends_in_a_softmax_is_warned_of_before_it_is_trained": ("jax",),
    "tests/export/test_tasks.py": (),
    "tests/export/test_drawing.py::test_a_recurrent_model_with_dropout_is_exported_and_every_answer_compared": (),
    "tests/export/test_drawing.py::test_a_model_that_samples_is_exported_and_its_answers_are_told_to_be_drawn": (),
    "tests/export/test_drawing.py::test_weights_are_written_where_the_model_holds_what_no_file_can": (),
    "tests/export/test_commands.py::test_averages_of_a_bfloat16_run_are_what_is_evaluated_resumed_and_exported": (),
    "tests/sweep/test_sweep.py::test_jobs_of_another_launcher_are_tracked_and_told_alike": (),
    "tests/sweep/test_sweep.py::test_what_fails_or_is_killed_is_told_and_resumed_to_the_end": (),
    "tests/sweep/test_sweep.py::test_ctrl_c_ends_the_jobs_of_a_cluster_cleanly": (),
    "tests/sweep/test_sweep.py::test_ctrl_c_ends_the_running_job_marks_the_rest_and_leaves_no_process": (),
    # Long ones, of which a shorter test shows the most: whole commands, signals, two processes at one cache.
    "tests/export/test_commands.py::test_an_export_predicts_as_the_run_does_and_mlflow_serves_it": (),
    "tests/export/test_commands.py::test_evaluate_takes_another_mesh_and_split_and_records_nothing_untracked": (),
    "tests/run/test_runs.py::test_sigterm_ends_a_run_killed_with_its_metrics_up_to_the_last_step": (),
    "tests/notebook/test_opened.py::test_training_and_planning_from_python": (),
    "tests/training/checkpoint/test_resumed_loop.py::"
    "test_killed_before_or_after_it_went_back_it_ends_the_same_and_its_last_points_are_those_that_count": (),
    "tests/training/checkpoint/test_commands.py::test_a_branch_is_a_new_run_and_going_back_replaces_as_it_goes": (),
    "tests/training/checkpoint/test_last_release.py::"
    "test_it_is_evaluated_and_goes_on_to_what_that_release_made_of_it": ("jax",),
    "tests/tracking/test_tracking_server.py::"
    "test_what_a_dead_server_missed_lies_in_a_named_file_and_is_stored_at_the_next_start": (),
    "tests/data/test_prepare.py::test_two_runs_that_start_together_prepare_once_and_read_the_same": (),
    "tests/data/test_prepare.py::test_the_decoded_examples_are_those_of_the_original_files": (),
    "tests/data/test_prepare.py::test_prepared_data_is_decoded_anew_without_a_network_and_to_the_same_bytes": (),
    "tests/data/test_prepare.py::test_what_tfds_prepares_of_the_kept_files_without_a_network_is_the_same": (),
    "tests/data/test_prepare.py::test_features_without_a_place_in_an_array_are_told_by_name": (),
    "tests/data/test_prepare.py::test_a_builder_whose_source_changed_is_prepared_anew": (),
    "tests/tracking/test_tracking_processes.py::test_four_first_runs_at_once_on_an_empty_store_all_succeed": (),
    "tests/tracking/test_tracking_browser.py": (),
    "tests/tracking/test_tracking_secrets.py::test_no_byte_of_what_a_run_prints_or_stores_holds_the_password": (),
    "tests/sweep/test_many_writers.py::test_four_jobs_at_once_lose_no_point_and_store_none_twice": (),
}

# Of long lists of cases that are like each other, each of so many runs with all tests.
EVERY = {
    "tests/config/test_refusals.py::test_bad_input_is_refused_in_one_line_and_leaves_no_folder": 3,
    "tests/config/test_refusals_values.py::test_what_would_pass_in_silence_is_refused_by_name": 3,
    "tests/config/test_refusals_values.py::test_what_only_looks_alike_passes": 3,
}


def mark(items: list[pytest.Item]) -> None:
    """Marks as campaigns what is not kept."""
    places: Counter[str] = Counter()
    for item in items:
        test, _, case = item.nodeid.partition("[")
        kept = KEPT.get(test, KEPT.get(test.partition("::")[0]))
        is_left = kept is not None and case.removesuffix("]") not in kept
        if is_left or places[test] % EVERY.get(test, 1):
            item.add_marker("campaign")
        places[test] += 1
