target_sources(test_infer PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/train/rig.cc)
target_link_libraries(test_infer PRIVATE athanor_train athanor_cpu)
