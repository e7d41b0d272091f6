set(data_tests ${CMAKE_CURRENT_LIST_DIR}/worker/data)
trainyard_test(data_token_test TIER unit
  SOURCES ${data_tests}/token_file_test.cc ${data_tests}/token_writer_test.cc
          ${data_tests}/dataset_test.cc
  DEPS worker_data)
# It replaces operator new and delete, whose other halves the compiler must not see.
set_source_files_properties(${CMAKE_SOURCE_DIR}/tests/support/allocation_counter.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
trainyard_test(data_order_test TIER unit THREADED
  SOURCES ${data_tests}/sampler_test.cc ${data_tests}/batch_loader_test.cc
          ${data_tests}/batch_partition_test.cc
          ${data_tests}/documents_test.cc
          ${data_tests}/evaluation_loader_test.cc
          ${CMAKE_SOURCE_DIR}/tests/support/allocation_counter.cc
  DEPS worker_data)
# Needs GPT-2's vocabulary: tools/fetch_data.sh gpt2-bpe.
trainyard_test(data_tokenizer_test TIER unit
  SOURCES ${data_tests}/text/added_tokens_test.cc ${data_tests}/text/bpe_vocabulary_test.cc
          ${data_tests}/text/byte_level_bpe_test.cc ${data_tests}/text/pipeline_test.cc
          ${data_tests}/text/tokenizer_inputs_test.cc ${data_tests}/text/utf8_test.cc
  DEPS worker_data nlohmann_json::nlohmann_json)
# Fetches the tokenizers of other models with TRAINYARD_LONG_TESTS=1.
trainyard_test(tokenizer_reference_test TIER unit TIMEOUT 1500
  SOURCES ${data_tests}/text/reference_test.cc
  DEPS worker_data)
# Needs the State of the Union addresses as well: tools/fetch_data.sh.
trainyard_test(data_prepare_test TIER unit
  SOURCES ${data_tests}/baseline_test.cc ${data_tests}/copies_test.cc ${data_tests}/prepare_test.cc ${data_tests}/sources_test.cc
          ${data_tests}/text/text_check_test.cc
  DEPS worker_data nlohmann_json::nlohmann_json)
