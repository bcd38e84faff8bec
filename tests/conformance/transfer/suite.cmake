# One suite for every way of chunks to ranks: the same sources, linked with a transport and a device
# of its kind. Ports also pass the frame suite, with a way to run its parties.
set(transfer_suite
  fault_test.cc
  fleet_test.cc
  open_publish.cc
  subscription_test.cc
  ../../unit/transfer/test_models.cc)
set(transfer_frame_suite
  frame_cases.cc
  frame_test.cc)
list(TRANSFORM transfer_suite PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM transfer_frame_suite PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
set(transfer_suite_libraries wstore::worker wstore::service wstore::wire wstore::checkpoint
    wstore::journal wstore::proto nlohmann_json::nlohmann_json)
