# The rules that hold the house up: who may include whom, what may stand in the repository.
trainyard_test(layering_test TIER unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/house/include_rules.cc
          ${CMAKE_CURRENT_LIST_DIR}/house/source_tree.cc
          ${CMAKE_CURRENT_LIST_DIR}/house/layering_test.cc)
trainyard_test(repository_test TIER unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/house/source_tree.cc
          ${CMAKE_CURRENT_LIST_DIR}/house/repository_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/house/type_names_test.cc)
# Who reads the fields of the structs that many rooms share.
trainyard_test(field_readers_test TIER unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/house/source_tree.cc
          ${CMAKE_CURRENT_LIST_DIR}/house/field_readers_test.cc
  DEPS common_api)
# The reference pages against the code.
trainyard_test(reference_pages_test TIER unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/house/source_tree.cc
          ${CMAKE_CURRENT_LIST_DIR}/house/reference_pages_test.cc
  DEPS common_api)
# The list of planted bugs fits the sources that it changes, as do the explanations of generated mutants that
# survive; `tools/run_mutants` plants them.
add_test(NAME mutants_list_test COMMAND ${CMAKE_SOURCE_DIR}/tools/run_mutants --check)
add_test(NAME mutants_generator_test COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/house/mutants_test.py)
set_tests_properties(mutants_list_test mutants_generator_test PROPERTIES LABELS unit TIMEOUT 300)
# The English of every --help.
if(NOT TRAINYARD_SANITIZE)
  add_test(NAME help_english_test
    COMMAND ${CMAKE_SOURCE_DIR}/tools/check_english --help-of ${CMAKE_BINARY_DIR}/bin/trainyard
            ${CMAKE_BINARY_DIR}/bin/trainyard-agent ${CMAKE_BINARY_DIR}/bin/trainyard-operator
            ${CMAKE_BINARY_DIR}/bin/trainyard-worker)
  set_tests_properties(help_english_test PROPERTIES LABELS unit TIMEOUT 300)
endif()
