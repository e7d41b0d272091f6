# One target a parser that reads bytes from outside. Each checks more than "it does not crash": what was
# accepted must survive a round trip.
trainyard_fuzz(document_fuzz SOURCES ${CMAKE_CURRENT_LIST_DIR}/document_fuzz.cc DEPS common_text)
trainyard_fuzz(contract_fuzz SOURCES ${CMAKE_CURRENT_LIST_DIR}/contract_fuzz.cc DEPS common_contract)
