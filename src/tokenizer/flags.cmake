# Split patterns other than the built-in ones need PCRE2. Only its static library will do: the program must run where
# none is installed.
find_path(ATHANOR_PCRE2_INCLUDE pcre2.h)
find_library(ATHANOR_PCRE2 NAMES libpcre2-8.a)
if(ATHANOR_PCRE2_INCLUDE AND ATHANOR_PCRE2)
  target_sources(athanor_tokenizer PRIVATE ${CMAKE_SOURCE_DIR}/src/tokenizer/optional/pcre2.cc)
  target_compile_definitions(athanor_tokenizer PRIVATE PCRE2_STATIC)
  target_include_directories(athanor_tokenizer SYSTEM PRIVATE ${ATHANOR_PCRE2_INCLUDE})
  target_link_libraries(athanor_tokenizer PRIVATE ${ATHANOR_PCRE2})
else()
  message(STATUS "no libpcre2-8.a: split patterns of tokenizer files are limited to the built-in ones")
  target_sources(athanor_tokenizer PRIVATE ${CMAKE_SOURCE_DIR}/src/tokenizer/optional/no_pcre2.cc)
endif()
