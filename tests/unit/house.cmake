# The rules that hold the house up: who may include whom, what may stand in the repository.
trainyard_test(layering_test TIER unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/house/include_rules.cc
          ${CMAKE_CURRENT_LIST_DIR}/house/source_tree.cc
          ${CMAKE_CURRENT_LIST_DIR}/house/layering_test.cc)
trainyard_test(repository_test TIER unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/house/source_tree.cc
          ${CMAKE_CURRENT_LIST_DIR}/house/repository_test.cc)
