target_link_libraries(test_trainer PRIVATE athanor_train athanor_cpu athanor_reference)
target_sources(test_trainer PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/train/rig.cc)
