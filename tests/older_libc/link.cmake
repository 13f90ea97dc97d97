target_sources(test_older_libc PRIVATE ${CMAKE_SOURCE_DIR}/src/older_libc.cc)
