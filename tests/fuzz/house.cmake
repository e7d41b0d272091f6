# One target a parser that reads bytes from outside. Each checks more than "it does not crash": what was
# accepted must survive a round trip.
set(here ${CMAKE_CURRENT_LIST_DIR})
trainyard_fuzz(document_fuzz SOURCES ${here}/document_fuzz.cc DEPS common_text)
trainyard_fuzz(contract_fuzz SOURCES ${here}/contract_fuzz.cc DEPS common_contract)
trainyard_fuzz(manifest_fuzz SOURCES ${here}/manifest_fuzz.cc DEPS common_api)
trainyard_fuzz(safetensors_fuzz SOURCES ${here}/safetensors_fuzz.cc DEPS worker_safetensors)
trainyard_fuzz(checkpoint_fuzz SOURCES ${here}/checkpoint_fuzz.cc DEPS worker_checkpoint)
trainyard_fuzz(token_shard_fuzz SOURCES ${here}/token_shard_fuzz.cc DEPS worker_data)
trainyard_fuzz(wire_fuzz SOURCES ${here}/wire_fuzz.cc DEPS worker_comm)
