/* board_layout.c - prints the layout of board.h as one JSON object: for each structure its size
 * and the offset and size of every member. A test compares agent/board.py with it. */
#include <stddef.h>
#include <stdio.h>
#include "board.h"

static const char *separator = "";

static void begin(const char *name, size_t size) {
    printf("%s\n  \"%s\": {\"size\": %zu, \"members\": {", separator, name, size);
    separator = "";
}

static void member(const char *name, size_t offset, size_t size) {
    printf("%s\"%s\": [%zu, %zu]", separator, name, offset, size);
    separator = ", ";
}

static void end(void) {
    printf("}}");
    separator = ",";
}

#define BEGIN(type) begin(#type, sizeof(struct type))
#define MEMBER(type, name)                                                                         \
    member(#name, offsetof(struct type, name), sizeof(((struct type *)0)->name))

static void training(void) {
    BEGIN(sfill_stream_slot);
    MEMBER(sfill_stream_slot, before);
    MEMBER(sfill_stream_slot, after);
    MEMBER(sfill_stream_slot, marked);
    MEMBER(sfill_stream_slot, last_issue_ns);
    MEMBER(sfill_stream_slot, context);
    MEMBER(sfill_stream_slot, stream_id);
    MEMBER(sfill_stream_slot, state);
    MEMBER(sfill_stream_slot, gpu);
    MEMBER(sfill_stream_slot, done);
    end();
    BEGIN(sfill_gpu_section);
    MEMBER(sfill_gpu_section, uuid);
    MEMBER(sfill_gpu_section, used);
    MEMBER(sfill_gpu_section, bubble_cause);
    MEMBER(sfill_gpu_section, bubble_seq);
    MEMBER(sfill_gpu_section, bubble_begin_ns);
    MEMBER(sfill_gpu_section, resume_seq);
    MEMBER(sfill_gpu_section, resume_launch_ns);
    MEMBER(sfill_gpu_section, launches);
    MEMBER(sfill_gpu_section, resume_issued_ns);
    MEMBER(sfill_gpu_section, resume_mark_ns);
    MEMBER(sfill_gpu_section, resume_call_ns);
    MEMBER(sfill_gpu_section, resumed_seq);
    end();
    BEGIN(sfill_bubble);
    MEMBER(sfill_bubble, seq);
    MEMBER(sfill_bubble, begin_ns);
    MEMBER(sfill_bubble, end_ns);
    MEMBER(sfill_bubble, launches);
    MEMBER(sfill_bubble, gpu);
    MEMBER(sfill_bubble, cause);
    end();
    BEGIN(sfill_board_head);
    MEMBER(sfill_board_head, magic);
    MEMBER(sfill_board_head, version);
    MEMBER(sfill_board_head, size_bytes);
    MEMBER(sfill_board_head, board_id);
    MEMBER(sfill_board_head, process_id);
    MEMBER(sfill_board_head, shut);
    end();
    BEGIN(sfill_training_board);
    MEMBER(sfill_training_board, head);
    MEMBER(sfill_training_board, lend);
    MEMBER(sfill_training_board, fill_present);
    MEMBER(sfill_training_board, ready);
    MEMBER(sfill_training_board, slots_used);
    MEMBER(sfill_training_board, gpus_used);
    MEMBER(sfill_training_board, drained);
    MEMBER(sfill_training_board, drained);
    MEMBER(sfill_training_board, bubble_head);
    MEMBER(sfill_training_board, gpus);
    MEMBER(sfill_training_board, slots);
    MEMBER(sfill_training_board, bubbles);
    end();
}

static void fill(void) {
    BEGIN(sfill_use);
    MEMBER(sfill_use, host_board_id);
    MEMBER(sfill_use, bubble_seq);
    MEMBER(sfill_use, bubble_begin_ns);
    MEMBER(sfill_use, bubble_end_ns);
    MEMBER(sfill_use, first_release_ns);
    MEMBER(sfill_use, last_done_ns);
    MEMBER(sfill_use, gpu_time_ns);
    MEMBER(sfill_use, intrusion_ns);
    MEMBER(sfill_use, kernels);
    MEMBER(sfill_use, copies);
    MEMBER(sfill_use, gpu);
    MEMBER(sfill_use, cause);
    MEMBER(sfill_use, check_age_max_ns);
    end();
    BEGIN(sfill_fill_gpu);
    MEMBER(sfill_fill_gpu, uuid);
    MEMBER(sfill_fill_gpu, wants);
    MEMBER(sfill_fill_gpu, open);
    MEMBER(sfill_fill_gpu, closed_reason);
    MEMBER(sfill_fill_gpu, member);
    MEMBER(sfill_fill_gpu, members);
    MEMBER(sfill_fill_gpu, released);
    MEMBER(sfill_fill_gpu, last_release_ns);
    MEMBER(sfill_fill_gpu, in_flight_ns);
    MEMBER(sfill_fill_gpu, memory_bytes);
    MEMBER(sfill_fill_gpu, held_too_long);
    MEMBER(sfill_fill_gpu, wait_ns);
    MEMBER(sfill_fill_gpu, open_gpu_ns);
    MEMBER(sfill_fill_gpu, done_ns);
    MEMBER(sfill_fill_gpu, recorded);
    end();
    BEGIN(sfill_fill_board);
    MEMBER(sfill_fill_board, head);
    MEMBER(sfill_fill_board, gpus_used);
    MEMBER(sfill_fill_board, drained);
    MEMBER(sfill_fill_board, drained);
    MEMBER(sfill_fill_board, use_head);
    MEMBER(sfill_fill_board, use_lost);
    MEMBER(sfill_fill_board, gpus);
    MEMBER(sfill_fill_board, uses);
    end();
}

static void policy(void) {
    BEGIN(sfill_policy_fill);
    MEMBER(sfill_policy_fill, job_id);
    MEMBER(sfill_policy_fill, allowed);
    MEMBER(sfill_policy_fill, reason);
    MEMBER(sfill_policy_fill, memory_limit_bytes);
    MEMBER(sfill_policy_fill, turn);
    end();
    BEGIN(sfill_policy_page);
    MEMBER(sfill_policy_page, magic);
    MEMBER(sfill_policy_page, version);
    MEMBER(sfill_policy_page, size_bytes);
    MEMBER(sfill_policy_page, uuid);
    MEMBER(sfill_policy_page, heartbeat);
    MEMBER(sfill_policy_page, boards_sequence);
    MEMBER(sfill_policy_page, boards_count);
    MEMBER(sfill_policy_page, unknown_training);
    MEMBER(sfill_policy_page, boards);
    MEMBER(sfill_policy_page, dwell_us);
    MEMBER(sfill_policy_page, in_flight_us);
    MEMBER(sfill_policy_page, min_bubble_us);
    MEMBER(sfill_policy_page, unknown_op_us);
    MEMBER(sfill_policy_page, max_op_us);
    MEMBER(sfill_policy_page, turn_us);
    MEMBER(sfill_policy_page, turns);
    MEMBER(sfill_policy_page, flags);
    MEMBER(sfill_policy_page, graph_part_us);
    MEMBER(sfill_policy_page, fills);
    end();
}

static void account(void) {
    BEGIN(sfill_account_place);
    MEMBER(sfill_account_place, board_id);
    MEMBER(sfill_account_place, bytes);
    end();
    BEGIN(sfill_account_page);
    MEMBER(sfill_account_page, magic);
    MEMBER(sfill_account_page, version);
    MEMBER(sfill_account_page, size_bytes);
    MEMBER(sfill_account_page, uuid);
    MEMBER(sfill_account_page, job_id);
    MEMBER(sfill_account_page, complete);
    MEMBER(sfill_account_page, places_used);
    MEMBER(sfill_account_page, places);
    end();
}

int main(void) {
    printf("{");
    training();
    fill();
    policy();
    account();
    printf("\n}\n");
    return 0;
}
