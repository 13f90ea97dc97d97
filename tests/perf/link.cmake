target_sources(test_perf PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/train/rig.cc)
target_link_libraries(test_perf PRIVATE athanor_cpu athanor_reference)
target_link_libraries(test_perf PRIVATE athanor_train)
