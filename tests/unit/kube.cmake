# The API server's client and the cache of what it shows.
set(here ${CMAKE_CURRENT_LIST_DIR}/operator)
trainyard_library(kube_test_support
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/../support/scripted_transport.cc
  DEPS operator_kube)
trainyard_test(kube_client_test TIER unit THREADED
  SOURCES ${here}/kube/api_error_test.cc ${here}/kube/client_test.cc ${here}/kube/kubeconfig_test.cc
          ${here}/kube/text_test.cc
  DEPS operator_kube kube_test_support)
trainyard_test(kube_inlet_test TIER unit THREADED SOURCES ${here}/kube/inlet_test.cc DEPS operator_http)
trainyard_test(kube_cache_test TIER unit THREADED
  SOURCES ${here}/cache/expectations_test.cc ${here}/cache/reflector_random_test.cc
          ${here}/cache/reflector_test.cc ${here}/cache/store_test.cc
  DEPS operator_cache kube_test_support)
trainyard_library(loopback_test_support
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/../support/loopback_server.cc ${CMAKE_CURRENT_LIST_DIR}/../support/test_authority.cc
  DEPS common_base common_pem OpenSSL::SSL OpenSSL::Crypto Threads::Threads)
trainyard_test(operator_stream_parts_test TIER unit THREADED
  SOURCES ${here}/stream/admitted_rates_test.cc ${here}/stream/admitted_transport_test.cc ${here}/stream/certificates_test.cc ${here}/stream/leader_label_test.cc
          ${here}/stream/tls_secret_test.cc ${here}/stream/token_claims_test.cc ${here}/stream/token_review_test.cc
  DEPS operator_stream kube_test_support)
# Under TSan Debian's uninstrumented gRPC gives false reports (as grpc_transport_test).
trainyard_test(control_stream_test TIER unit NOT_UNDER thread
  SOURCES ${here}/stream/control_stream_test.cc
  DEPS operator_stream kube_test_support)
trainyard_test(grpc_port_transport_test TIER unit NOT_UNDER thread
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/coordinator/grpc_port_transport_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/../support/tcp_forwarder.cc
  DEPS control_coordinator_grpc loopback_test_support)
trainyard_test(port_attack_test TIER unit NOT_UNDER thread
  SOURCES ${here}/stream/port_attack_test.cc ${CMAKE_CURRENT_LIST_DIR}/../support/tls_client.cc
  DEPS operator_stream common_io loopback_test_support z)
# The HTTP library is not instrumented: its reference counts look like races. What threads share of ours is the
# inlet, which kube_inlet_test shows under this sanitizer, too.
trainyard_test(http_transport_test TIER unit THREADED NOT_UNDER thread
  SOURCES ${here}/kube/http_tls_test.cc ${here}/kube/http_transport_test.cc
  DEPS operator_http common_io loopback_test_support)
