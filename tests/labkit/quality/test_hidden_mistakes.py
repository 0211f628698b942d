"""Mistakes for the hidden suites alone: a hidden test that none of them fails might as well be
missing, for all that it is known to catch the public tests catch too."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from labkit.course.manifest import Course, Phase
from labkit.course.root import find_root
from labkit.judge import mistakes, public
from labkit.quality import mutants
from labkit.quality.mutants import Verdict
from tests.labkit.toy_course import make_course

COURSE = Course(find_root())
STATED = "the public tests state the same rules; no mistake is known that only these cases show"
CHANGES = "a change made by rule got through without it: `make suite-quality` looks for those"
NAMED = "without it a named mistake got a green grade that the public tests catch"
FRESH = "drawn, so that answers written down in one grade are of no use in the next"
WHOLE = "whole runs beside the reference or a recording: a net for mistakes that are not listed"
NONE_YET = {
    "sets that one way of joining takes for one; there are too many such ways to name": [
        "test_12_3_no_two_sets_of_states_are_taken_for_one",
    ],
    "the public tests ask for all twelve statuses too": [
        "test_00_1_every_status",
        "test_00_4_every_status",
    ],
    "the public tests ask the same of one update": [
        "test_06_10_an_equal_state_in_the_place_of_the_old",
    ],
    STATED: [
        "test_00_5_any_turns",
        "test_00_5_answers_that_come_late",
        "test_00_5_the_courses_scheduler",
        "test_07_7_any_lengths",
        "test_07_8_any_product",
        "test_14_15_a_template_that_cuts",
        "test_14_15_contents_and_nothing_else",
        "test_14_15_any_two_prompts",
        "test_14_15_no_text_to_go_on_with",
        "test_19_1_any_pool",
        "test_19_1_what_is_no_flow",
        "test_19_2_any_parts",
        "test_19_2_what_no_law_holds_for",
        "test_19_4_any_stacks",
        "test_19_4_deep_stacks_cost_as_much_as_they_are_long",
        "test_19_5_the_interval_holds_the_truth",
        "test_19_5_repeats",
        "test_19_5_what_cannot_be_compared",
        "test_19_6_any_search",
        "test_19_6_none_is_none",
        "test_19_6_what_cannot_be_searched",
        "test_19_7_any_values",
        "test_19_7_any_histogram",
        "test_19_7_what_has_no_percentile",
        "test_19_8_any_wait",
        "test_19_9_any_choice",
        "test_19_10_any_platforms",
        "test_17_5_groups_scores_and_biases",
        "test_17_6_stable_order",
        "test_17_6_a_product_for_each_expert",
        "test_17_7_tiles_of_one_expert",
        "test_17_9_a_pack_without_load",
        "test_17_9_an_expert_that_stays_keeps_its_place",
        "test_17_10_chunks_of_any_size",
        "test_17_11_any_layer_of_any_model",
        "test_02_6_the_gate_ends_at_the_models_length",
        "test_03_4_lookahead_slots",
        "test_03_5_a_prompt_of_the_models_whole_length",
        "test_10_1_any_sum",
        "test_10_1_any_shape",
        "test_10_2_any_link",
        "test_10_3_any_rows",
        "test_10_4_any_heads",
        "test_10_5_any_columns",
        "test_10_5_any_layer",
        "test_10_6_any_targets",
        "test_10_6_any_slice",
        "test_10_7_any_range",
        "test_10_7_any_tokens",
        "test_10_7_any_logits",
        "test_10_9_any_stage",
        "test_10_9_any_tokens",
        "test_10_11_any_moment",
        "test_10_12_any_requests",
        "test_10_12_any_turns",
        "test_10_12_a_refused_choice",
        "test_13_11_any_batch_of_pictures",
        "test_13_1_any_part_of_any_span",
        "test_13_2_names_differ_exactly_where_pictures_do",
        "test_13_3_any_prompt",
        "test_13_4_any_order_of_needing",
        "test_13_5_any_order_of_arrival",
        "test_13_6_any_range",
        "test_13_7_any_progress",
        "test_13_9_any_chunks",
        "test_01_1_any_prompt_without_a_cache",
        "test_01_1_the_largest_logit_by_however_little",
        "test_01_2_answers_and_prompts_are_lists_of_their_own",
        "test_02_1_parts_of_a_name_have_borders",
        "test_02_2_a_refusal_leaves_queue_and_count",
        "test_02_2_any_order_of_leaving_and_coming",
        "test_02_6_a_refusal_leaves_everything",
        "test_02_6_the_gate_knows_the_hits",
        "test_03_1_an_empty_queue_has_no_first_request",
        "test_03_5_every_lookup_is_counted",
        "test_03_6_blocked_requests_wait_beside_the_line",
        "test_05_1_unused_table_entries_are_zero",
        "test_05_3_decodes_lead_in_any_batch",
        "test_05_3_flat_is_what_a_loop_makes",
        "test_05_4_sampled_tokens_reach_their_rows",
        "test_05_4_which_requests_are_sampled",
        "test_05_5_a_full_batch_changes_hands",
        "test_05_8_half_precision_is_widened",
        "test_05_8_the_last_bytes_count",
        "test_05_8_what_is_not_needed_does_no_harm",
        "test_06_1_min_p_may_be_tiny",
        "test_06_1_min_p_of_every_row",
        "test_06_1_top_k_of_every_row",
        "test_06_2_a_large_flat_vocabulary",
        "test_06_2_top_k_and_top_p_together",
        "test_06_2_top_p_of_every_row",
        "test_06_3_bans_by_row_token_and_length",
        "test_06_3_bias_on_many_pairs",
        "test_06_4_the_number_of_any_seed_and_index",
        "test_06_4_the_stretch_in_which_the_number_lies",
        "test_06_6_failed_rows_among_sound_ones",
        "test_06_6_half_precision_logits",
        "test_06_6_logprobs_against_the_reference",
        "test_06_7_any_tokens_of_a_byte_level_vocabulary",
        "test_06_7_byte_fallback",
        "test_06_7_complete_text_of_any_bytes",
        "test_06_7_special_tokens",
        "test_06_8_find_and_hold_back",
        "test_06_8_one_letter_a_token",
        "test_08_1_short_texts_and_limits",
        "test_08_1_whose_text_is_searched",
        "test_08_4_nothing_is_missing_where_both_agree",
        "test_08_2_rows_are_those_of_a_loop",
        "test_08_3_the_longest_right_prefix_and_one_token",
        "test_08_4_the_residual_is_what_is_missing",
        "test_08_5_two_tokens_have_exactly_the_targets_law",
        "test_09_4_awq_and_gptq",
        "test_09_7_bytes_of_int8_heads",
        "test_09_7_one_scale_for_a_layer",
        "test_09_8_divergence_agreement_perplexity",
        "test_11_2_any_pairs",
        "test_11_4_any_order_of_use",
        "test_11_6_any_steps",
        "test_11_7_any_mapping_both_ways",
        "test_12_10_deep_right_recursion_stays_small",
        "test_12_10_random_nested_lists",
        "test_12_12_random_drafts",
        "test_12_2_random_patterns",
        "test_12_3_random_machines",
        "test_12_3_the_empty_text_stands_at_both_ends",
        "test_12_4_random_automata",
        "test_12_5_random_vocabularies",
        "test_12_7_random_masks",
        "test_12_9_random_objects",
        "test_14_2_a_reader_does_not_spin",
        "test_14_4_an_idle_engine_waits",
        "test_14_5_twins_run_on",
        "test_14_5_each_way_to_leave_a_stream",
        "test_14_6_how_it_may_end",
        "test_14_7_any_body",
        "test_14_7_errors_and_ends",
        "test_14_8_random_races",
        "test_14_8_ties",
        "test_14_9_random_limits",
        "test_14_11_random_histograms",
        "test_14_12_every_single_cut",
        "test_14_12_random_overlaps",
        "test_14_13_random_loads",
        "test_14_13_random_objectives",
        "test_14_1_logprobs_by_hand",
        "test_14_5_limits_by_hand",
        "test_14_5_a_completion_that_has_ended_is_not_aborted",
        "test_14_6_sizes_by_hand",
        "test_14_6_a_stop_string",
        "test_14_8_by_hand",
        "test_14_3_an_engine_that_shuts_down_stays_awake",
        "test_14_3_each_kind_does_its_own",
        "test_14_4_ends_by_hand",
        "test_14_9_both_by_hand",
        "test_14_13_objectives_by_hand",
        "test_15_10_any_damage",
        "test_15_10_any_store",
        "test_15_11_any_sweep",
        "test_15_12_any_fetch",
        "test_15_13_any_lease",
        "test_15_14_any_route",
        "test_15_1_any_link",
        "test_15_2_any_tier",
        "test_15_3_any_stores",
        "test_15_4_any_blocks",
        "test_15_8_any_end",
        "test_16_2_new_blocks_follow_the_copy",
        "test_16_7_carry_or_compute",
        "test_16_7_the_book_of_uses",
        "test_16_8_the_earliest_of_all",
        "test_16_8_the_first_tokens_time",
        "test_16_7_an_answer_stays",
        "test_16_7_the_book_by_hand",
        "test_16_7_the_way_by_hand",
        "test_16_8_the_time_by_hand",
        "test_16_9_every_request_is_placed",
        "test_18_9_any_batch",
        "test_18_10_any_decodes",
        "test_18_10_any_chunks",
        "test_18_10_a_head_that_forgets_at_once",
        "test_18_10_in_the_dtype_of_states",
        "test_18_10_rounds_and_not_tokens",
        "test_18_11_any_heads",
        "test_18_11_latents_are_read_as_they_are",
        "test_18_12_any_splits_and_sinks",
        "test_18_12_scores_of_any_size",
        "test_18_12_the_dtype_of_out",
        "test_18_1_any_layers",
        "test_18_1_thousands_of_layers",
        "test_18_2_any_kind",
        "test_18_2_any_pool",
        "test_18_2_long_models_cost_little_more",
        "test_18_3_any_table_shrinks_alike",
        "test_18_3_any_hits_begin_a_table",
        "test_18_3_names_stay",
        "test_18_3_a_step_costs_what_goes",
        "test_18_4_a_name_is_hashes_and_group",
        "test_18_4_windows_of_any_size",
        "test_18_4_the_right_end_answers_at_once",
        "test_18_7_any_story_of_a_state",
        "test_18_7_any_hit_of_a_state",
        "test_18_7_a_state_of_this_step_is_waited_for",
        "test_18_7_a_long_request_costs_no_more",
        "test_18_5_any_prefix",
        "test_18_5_full_layers_are_looked_up_once",
        "test_18_6_any_growth",
        "test_18_6_what_becomes_findable",
        "test_18_8_any_chunk",
        "test_18_8_any_states_move",
    ],
    FRESH: [
        "test_02_4_any_names_and_twins",
        "test_03_3_any_victims",
        "test_05_8_any_tensor_may_be_the_wrong_one",
    ],
    CHANGES: [
        "test_18_7_a_state_stays_until_the_next_one_is_computed",
        "test_11_7_no_row_is_foreign",
        "test_11_4_an_adapter_in_use_stays_and_is_known",
        "test_10_1_where_the_input_is",
        "test_10_9_on_its_device",
        "test_15_4_no_blocks",
        "test_15_8_freed_requests_come_in_order",
        "test_15_10_neighbours",
        "test_15_14_after_a_reset",
        "test_01_2_one_cache_is_as_long_as_it_must_be",
        "test_03_6_no_request_has_a_turn_when_the_budget_is_spent",
        "test_03_6_the_smaller_head_has_its_turn",
        "test_07_3_without_a_graph_there_is_no_replay",
        "test_16_1_a_prompt_may_take_the_whole_budget",
    ],
    NAMED: [
        "test_19_4_rounding_makes_no_share_above_1",
        "test_04_4_a_row_that_sees_nothing_yet",
        "test_04_4_an_empty_split_is_written",
        "test_11_1_a_refusal_shows_the_name",
        "test_12_2_ends_are_free_for_others",
        "test_18_5_full_has_whole_blocks_only",
        "test_18_6_without_hits_none_are_added",
        "test_18_6_no_group_takes_the_hit_of_another",
        "test_17_10_preempted_then_whole_at_once",
        "test_19_2_of_equal_parts_the_first",
        "test_19_4_without_time_there_is_none",
        "test_16_8_the_earliest_though_all_are_in_time",
        "test_08_4_hardly_anything_is_missing",
        "test_09_7_rounded_once_when_it_is_read",
        "test_11_6_the_same_array_with_other_slots",
        "test_12_1_cuts_and_no_characters",
        "test_12_3_the_start_is_over",
        "test_12_4_any_byte_tells_apart",
        "test_12_6_the_byte_0",
        "test_12_8_the_last_bit_of_the_row",
        "test_12_10_stacks_that_double",
        "test_12_10_an_end_that_goes_on",
        "test_12_12_the_same_draft_again",
        "test_15_2_once_through_all",
        "test_15_3_a_store_is_no_use",
        "test_15_3_readers_are_counted_on",
        "test_15_5_without_an_offer_nothing_is_touched",
        "test_15_7_of_any_of_the_sets",
        "test_15_10_each_byte_of_the_checksum",
        "test_15_10_a_disk_that_refuses_once",
        "test_15_11_what_ends_otherwise",
        "test_15_13_a_part_of_a_name",
        "test_15_14_a_gap_in_the_middle",
        "test_12_8_an_end_beyond_the_row",
        "test_15_13_a_refusal_gives_no_key",
        "test_14_6_no_other_task_has_a_turn_while_the_next_step_waits",
        "test_14_1_a_total_is_no_part",
        "test_12_9_cases_do_not_double",
        "test_12_7_all_tokens_of_a_word_at_once",
        "test_12_4_calls_tell_states_apart",
        "test_12_2_several_ranges_and_no_copy",
        "test_12_2_calls_and_nothing_at_all",
        "test_11_6_tokens_of_a_slot_keep_their_order",
        "test_11_4_whose_turn_it_was_least_recently",
        "test_11_4_a_refusal_moves_nothing",
        "test_11_2_an_alpha_for_each_projection",
        "test_14_13_drawn_by_the_callers_generator",
        "test_14_13_a_limit_may_be_reached",
        "test_03_3_of_equals_the_first_goes",
        "test_03_7_the_end_of_text_has_no_name",
        "test_09_2_a_little_beside_half_a_step",
        "test_09_5_a_silent_token",
        "test_09_11_what_was_given_stays",
        "test_10_4_kv_heads_are_not_cut",
        "test_10_6_a_tensor_for_each_projection",
        "test_11_2_loaded_twice",
        "test_11_3_slot_after_slot",
        "test_11_4_each_rule_of_going",
        "test_11_6_tensors_stay_where_they_are",
        "test_11_7_a_stranger_is_infinite",
        "test_12_12_an_error_behind_a_draft",
        "test_12_12_token_0_is_a_draft",
        "test_12_2_an_anchor_in_the_middle",
        "test_12_2_anchors",
        "test_12_3_moves_with_a_condition",
        "test_12_4_calls_lead_on",
        "test_12_6_the_row_that_was_used_last_stays",
        "test_13_2_what_counts_and_what_does_not",
        "test_13_4_the_last_to_be_freed_is_the_youngest",
        "test_13_5_a_request_without_room_evicts_no_image",
        "test_13_9_chunks_of_three_requests",
        "test_14_12_without_arguments",
        "test_00_3_lists_that_are_handed_over_stay_the_callers",
        "test_02_3_the_callers_lists_stay",
        "test_10_11_a_message_is_a_copy",
        "test_10_4_query_heads_are_not_cut",
        "test_01_1_eos_is_a_token_like_others",
        "test_01_1_every_step_computes_all_from_position_0",
        "test_01_2_eos_is_a_token_like_others",
        "test_05_8_names_are_compared_before_the_first_copy",
        "test_06_2_top_p_counts_what_top_k_has_left",
        "test_07_2_tensors_stay_where_a_graph_reads_them",
    ],
    WHOLE: [
        "test_18_8_recordings_of_vllm",
        "test_18_8_fresh_traces",
        "test_17_9_a_model_of_64_experts",
        "test_16_6_a_real_model_says_the_same",
        "test_16_6_more_requests_in_time_than_v1",
        "test_16_9_more_requests_in_time_on_fresh_traces",
        "test_16_9_no_trace_is_given_up",
        "test_16_9_two_in_a_hundred_more",
        "test_02_6_random_stories_without_caching",
        "test_02_6_recordings_without_caching",
        "test_06_5_the_distribution_of_long_runs",
        "test_14_2_random_readers",
        "test_14_3_random_mail",
        "test_14_3_random_messages",
        "test_14_4_random_ends",
        "test_14_5_random_aborts",
        "test_14_5_random_departures",
        "test_14_6_random_slices",
        "test_14_6_random_steps",
        "test_14_7_random_breaks",
    ],
}
"""Hidden tests that no named mistake fails which the public tests let pass, by the reason. A new
hidden test needs such a mistake (`hidden_only = true`), recorded with
`python -m labkit mutants NN --hidden-only --write`, or a line here."""


def hidden_tests(phase: Phase) -> set[str]:
    """Names of the hidden suite's tests, without parameters. Others are accounted for elsewhere:
    those named after a bug in `tests/corpora/history`, and those of `test_promises.py`, which catch
    changes made by rule, in `make suite-quality`."""
    paths = [p for p in phase.hidden_tests.glob("test_*.py") if p.name != "test_promises.py"]
    texts = [path.read_text(encoding="utf-8") for path in paths]
    names = {name for text in texts for name in re.findall(r"(?m)^def (test_\w+)", text)}
    return {name for name in names if "_bug_" not in name}


def caught(phase: Phase) -> set[str]:
    """Those that fail on a mistake which its own task's public tests let pass, as recorded."""
    hidden = json.loads(mistakes.vectors_file(phase).read_text(encoding="utf-8"))["hidden"]
    return {
        failed.partition("[")[0]
        for entry in mistakes.entries(phase)
        if "hidden_only" in entry
        for failed in hidden[entry["name"]]
    }


@pytest.mark.parametrize("phase", COURSE.ready, ids=lambda phase: phase.number)
def test_every_hidden_test_catches_what_the_public_ones_do_not(phase: Phase) -> None:
    listed = {name for names in NONE_YET.values() for name in names}
    known = caught(phase)
    assert hidden_tests(phase) - known <= listed, "neither a mistake nor a reason"
    assert not listed & known, "there is a mistake now: take it off the list"


@pytest.mark.parametrize("phase", COURSE.ready, ids=lambda phase: phase.number)
def test_a_mistake_for_the_hidden_suite_passes_its_tasks_public_tests(phase: Phase) -> None:
    vectors = json.loads(mistakes.vectors_file(phase).read_text(encoding="utf-8"))
    for entry in mistakes.entries(phase):
        if "hidden_only" in entry:
            open_ones = map(public.task_of, vectors["public"][entry["name"]])
            secret = map(public.task_of, vectors["hidden"][entry["name"]])
            assert entry["exercise"] not in open_ones, entry["name"]
            assert entry["exercise"] in secret, entry["name"]


@pytest.mark.parametrize("phase", COURSE.ready, ids=lambda phase: phase.number)
def test_each_mistake_fails_a_test_of_its_own_task(phase: Phase) -> None:
    """It is a public or a hidden one, as recorded. Only hidden ones give points: those that public
    tests catch have no complete record of hidden ones."""
    vectors = json.loads(mistakes.vectors_file(phase).read_text(encoding="utf-8"))
    for entry in mistakes.entries(phase):
        failed = [test for suite in vectors.values() for test in suite.get(entry["name"], ())]
        assert entry["exercise"] in map(public.task_of, failed), entry["name"]


def test_what_did_not_run_stays_recorded(tmp_path: Path) -> None:
    phase = make_course(tmp_path).phase("0")
    first, second, *_ = mistakes.load(phase)

    def recorded() -> dict[str, dict[str, list[str]]]:
        return dict(json.loads(mistakes.vectors_file(phase).read_text(encoding="utf-8")))

    mutants.write_vectors(phase, [Verdict(first, ("a",), ("h",)), Verdict(second, ("b",), ())])
    assert recorded() == {
        "public": {first.name: ["a"], second.name: ["b"]},
        "hidden": {first.name: ["h"]},
    }
    mutants.write_vectors(phase, [Verdict(first, ("c",), None)])
    assert recorded()["public"] == {first.name: ["c"], second.name: ["b"]}
    assert recorded()["hidden"] == {first.name: ["h"]}
    mutants.write_vectors(phase, [Verdict(first, (), ())])
    assert recorded()["hidden"] == {}
    file = mistakes.mutants_file(phase)
    file.write_text(file.read_text().replace(f'"{second.name}"', '"another"'))
    mutants.write_vectors(phase, [])
    assert second.name not in recorded()["public"]


COMPARED = re.compile(
    r"\"(torch:(equal|allclose)|numpy:(array_equal|allclose)|operator:(eq|ne|lt|le|gt|ge))\""
)


def test_nothing_is_compared_where_the_submission_runs() -> None:
    """There `torch.equal` may be a function of hers that always says yes: a test lets the values
    themselves come back."""
    suites = sorted((COURSE.root / "tests" / "hidden").rglob("*.py"))
    assert len(suites) > 50
    assert [path.name for path in suites if COMPARED.search(path.read_text("utf-8"))] == []
