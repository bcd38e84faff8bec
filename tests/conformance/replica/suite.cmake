# One suite for every backend of a replica: the same sources, linked with a device of its kind.
set(replica_suite
  content_test.cc
  device_chunk_test.cc
  fault_test.cc
  instance.cc
  publisher.cc
  random_test.cc
  read_ahead_test.cc
  rules_test.cc
  scale_test.cc
  state_test.cc
  story.cc
  thread_test.cc
  update_test.cc
  ../../unit/transfer/reference_engine.cc
  ../../unit/transfer/test_models.cc)
list(TRANSFORM replica_suite PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
set(replica_suite_libraries wstore::transfer nlohmann_json::nlohmann_json)
