trainyard_test(layout_test TIER unit SOURCES ${CMAKE_CURRENT_LIST_DIR}/common/layout/layout_test.cc DEPS common_layout)
trainyard_test(last_words_test TIER unit NOT_UNDER address
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/common/io/last_words_test.cc
  DEPS common_io)
trainyard_test(control_group_test TIER unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/common/io/build_id_test.cc ${CMAKE_CURRENT_LIST_DIR}/common/io/control_group_test.cc ${CMAKE_CURRENT_LIST_DIR}/common/io/file_lock_test.cc ${CMAKE_CURRENT_LIST_DIR}/common/io/gpu_files_test.cc ${CMAKE_CURRENT_LIST_DIR}/common/io/input_test.cc ${CMAKE_CURRENT_LIST_DIR}/common/io/memory_facts_test.cc
  DEPS common_io)
trainyard_test(plan_test TIER unit SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/job/plan_test.cc DEPS worker_matrix)
trainyard_test(job_plan_test TIER unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/job/job_plan_test.cc ${CMAKE_CURRENT_LIST_DIR}/worker/job/device_formats_test.cc DEPS worker_job)
trainyard_test(portable_math_test TIER unit SOURCES ${CMAKE_CURRENT_LIST_DIR}/common/math/portable_test.cc DEPS common_math)
trainyard_test(program_test TIER unit SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/program/program_test.cc DEPS worker_program)
trainyard_test(schedules_test TIER unit SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/program/schedules_test.cc DEPS worker_program)
trainyard_test(simulate_test TIER unit SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/program/simulate_test.cc DEPS worker_program)
trainyard_test(memory_source_test TIER unit SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/device/memory_source_test.cc
               DEPS worker_device)
trainyard_test(guarded_device_test TIER unit THREADED
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/device/guarded_device.cc ${CMAKE_CURRENT_LIST_DIR}/worker/device/guarded_device_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/worker/device/staged_communicator_test.cc
  DEPS tests_comm_world worker_matrix worker_checkpoint checkpoint_test_support)
trainyard_test(arena_plan_test TIER unit SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/memory/arena_plan_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/worker/memory/activation_template_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/worker/device/parallel_copy_test.cc
  DEPS worker_memory common_random)
trainyard_test(dropout_mask_test TIER unit SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/model/ops/dropout_mask_test.cc DEPS worker_ops kernels_cpu)
trainyard_test(schedule_test TIER unit SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/engine/learning_rate_test.cc DEPS worker_engine)
trainyard_test(gpt2_test TIER unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/model/gpt2_test.cc ${CMAKE_CURRENT_LIST_DIR}/worker/model/stages_test.cc
  DEPS worker_model)
trainyard_test(generator_test TIER unit SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/sample/generator_test.cc DEPS worker_sample)
trainyard_test(trained_model_test TIER unit THREADED SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/sample/trained_model_test.cc
               DEPS worker_sample worker_matrix worker_checkpoint)
trainyard_test(engine_test TIER unit THREADED SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/engine/engine_test.cc ${CMAKE_CURRENT_LIST_DIR}/worker/engine/exact_limit_test.cc ${CMAKE_CURRENT_LIST_DIR}/worker/engine/ragged_batch_test.cc ${CMAKE_CURRENT_LIST_DIR}/worker/engine/documents_test.cc ${CMAKE_CURRENT_LIST_DIR}/worker/rank/work_meter_test.cc DEPS tests_comm_world worker_matrix)
trainyard_test(engine_ranks_test TIER unit THREADED SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/engine/engine_ranks_test.cc DEPS tests_comm_world worker_matrix worker_rank agent_process)
trainyard_test(preflight_test TIER unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/job/preflight_test.cc ${CMAKE_CURRENT_LIST_DIR}/worker/job/inputs_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/worker/job/unused_parameters_test.cc ${CMAKE_CURRENT_LIST_DIR}/worker/job/early_stop_test.cc
  DEPS worker_job)
trainyard_test(states_test TIER unit SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/state/states_test.cc DEPS worker_state)
trainyard_test(engine_state_test TIER unit THREADED SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/job/engine_state_test.cc DEPS worker_matrix worker_checkpoint)
trainyard_test(resume_test TIER unit THREADED SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/job/resume_test.cc DEPS tests_comm_world worker_matrix checkpoint_test_support)
trainyard_test(train_loop_test TIER unit THREADED
               SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/rank/train_loop_test.cc ${CMAKE_CURRENT_LIST_DIR}/worker/rank/state_replicas_test.cc
               DEPS tests_comm_world worker_rank nlohmann_json::nlohmann_json)
# Its threads are those of engine_test, which ThreadSanitizer watches; this one counts.
trainyard_test(engine_allocation_test TIER unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/engine/allocation_test.cc ${CMAKE_SOURCE_DIR}/tests/support/allocation_counter.cc
  DEPS tests_comm_world worker_matrix)
trainyard_test(slices_test TIER unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/job/slices_test.cc ${CMAKE_SOURCE_DIR}/tests/support/allocation_counter.cc
  DEPS tests_comm_world worker_matrix checkpoint_test_support)
trainyard_test(report_test TIER unit SOURCES ${CMAKE_CURRENT_LIST_DIR}/cli/report/report_test.cc DEPS cli_report)
trainyard_test(plan_program_test TIER unit THREADED SOURCES ${CMAKE_CURRENT_LIST_DIR}/cli/plan_program_test.cc DEPS cli_commands)
trainyard_test(trace_test TIER unit SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/trace/trace_test.cc
  DEPS worker_trace nlohmann_json::nlohmann_json)
trainyard_test(agent_link_test TIER unit THREADED SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/rank/agent_link_test.cc DEPS worker_rank)
trainyard_test(rank_device_test TIER unit SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/rank/rank_device_test.cc DEPS tests_comm_world worker_rank)
trainyard_test(skipped_steps_test TIER unit THREADED SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/rank/skipped_steps_test.cc DEPS tests_comm_world worker_rank)
trainyard_test(fault_plan_test TIER unit SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/rank/fault_plan_test.cc DEPS worker_rank)
trainyard_test(stacks_test TIER unit THREADED SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/stacks/stacks_test.cc DEPS worker_stacks)
set_target_properties(stacks_test PROPERTIES ENABLE_EXPORTS ON)
