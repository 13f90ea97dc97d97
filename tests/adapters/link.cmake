target_sources(test_adapters PRIVATE ${CMAKE_SOURCE_DIR}/tests/train/rig.cc)
target_link_libraries(test_adapters PRIVATE athanor_train athanor_cpu athanor_reference)
