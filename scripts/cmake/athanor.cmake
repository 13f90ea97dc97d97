# Helpers of CMakeLists.txt: flags, one library per folder.

function(athanor_flags target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O3 -g1> -fno-math-errno -ffp-contract=off -fopenmp-simd)
  if(NOT ATHANOR_SANITIZE) # those see ghosts in instrumented code, and take time
    target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wimplicit-fallthrough -Werror
      # g++ 12 sees ghosts in sums of strings (its bug 105651), and takes up to ten times as long over a source that runs
      # through all ops where it looks for unsequenced changes; scripts/tidy.py has clang look for them.
      $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> $<$<CXX_COMPILER_ID:GNU>:-Wno-sequence-point>
      -Wno-missing-field-initializers) # op structs name the tensors they have; the others are absent
  endif()
  target_compile_definitions(${target} PRIVATE SPDLOG_HEADER_ONLY SPDLOG_FMT_EXTERNAL FMT_HEADER_ONLY)
  if(ATHANOR_SANITIZE)
    # -Og compiles in 60 % of the time of -O1; athanor_library() has -O1 for what computes.
    target_compile_options(${target} PRIVATE -Og -fsanitize=${ATHANOR_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    if(ATHANOR_SANITIZE MATCHES undefined AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
      # Checks of every pointer take g++ a third of the time, and find little that the address sanitizer does not. The
      # fuzz targets, which clang compiles, have them.
      target_compile_options(${target} PRIVATE
        -fno-sanitize=null,alignment,object-size,vptr,nonnull-attribute,returns-nonnull-attribute)
    endif()
    target_compile_definitions(${target} PRIVATE ATHANOR_SANITIZED)
    target_link_options(${target} PRIVATE -fsanitize=${ATHANOR_SANITIZE})
  endif()
  if(ATHANOR_FUZZERS)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()

# athanor_unity(target [alone...]): compiles up to 24 sources as one, where ATHANOR_UNITY is on; those named last
# are compiled alone, since they share names with others.
function(athanor_unity target)
  if(ATHANOR_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 24
      UNITY_BUILD_CODE_BEFORE_INCLUDE "// NOLINTNEXTLINE(bugprone-suspicious-include)")
    set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

# athanor_library(folder dep...): all of src/<folder>/*.cc as athanor_<folder>; header-only folders become interfaces.
function(athanor_library folder)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${folder}/*.cc)
  list(TRANSFORM ARGN PREPEND athanor_ OUTPUT_VARIABLE deps)
  if(sources)
    add_library(athanor_${folder} STATIC ${sources})
    target_include_directories(athanor_${folder} PUBLIC ${CMAKE_SOURCE_DIR}/src ${CMAKE_BINARY_DIR}/generated)
    target_link_libraries(athanor_${folder} PUBLIC ${deps})
    athanor_flags(athanor_${folder})
    if(ATHANOR_SANITIZE)
      if(folder MATCHES "^(base|cpu|reference|tokenizer)$") # compute, or need inlined functions of xxHash
        target_compile_options(athanor_${folder} PRIVATE -O1)
      endif()
    elseif(folder MATCHES "^(analysis|checkpoint|command|config|convert|engine|metrics|model|nn|optim|param|perf|pipeline|plan|report|tape|train)$")
      # Folders that neither compute nor run once per op are compiled for a short build, not for speed.
      target_compile_options(athanor_${folder} PRIVATE $<$<CONFIG:Release>:-O1>)
    endif()
    file(GLOB alone ${CMAKE_SOURCE_DIR}/src/comm/tcp.cc ${CMAKE_SOURCE_DIR}/src/command/cli.cc ${CMAKE_SOURCE_DIR}/src/cpu/gemm*.cc ${CMAKE_SOURCE_DIR}/src/cpu/norm.cc
      ${CMAKE_SOURCE_DIR}/src/cpu/quantize.cc)
    athanor_unity(athanor_${folder} ${alone})
    include(${CMAKE_SOURCE_DIR}/src/${folder}/flags.cmake OPTIONAL) # flags of single sources
    if(folder STREQUAL base)
      target_link_libraries(athanor_base PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
    endif()
  else()
    add_library(athanor_${folder} INTERFACE)
    target_include_directories(athanor_${folder} INTERFACE ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(athanor_${folder} INTERFACE ${deps})
  endif()
endfunction()

# athanor_interface(folder dep...): a folder of which this library has only the headers; whoever makes a program chooses
# how its sources are compiled.
function(athanor_interface folder)
  list(TRANSFORM ARGN PREPEND athanor_ OUTPUT_VARIABLE deps)
  add_library(athanor_${folder} INTERFACE)
  target_include_directories(athanor_${folder} INTERFACE ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(athanor_${folder} INTERFACE ${deps})
endfunction()

# Links a program with the C library of another distribution, whose root folder has its libc6-dev: it then runs where
# glibc is as old as that. What the compiler's own libraries want of a later one is in src/older_libc.cc.
function(athanor_link_libc program root)
  set(folder ${CMAKE_BINARY_DIR}/libc)
  file(REMOVE_RECURSE ${folder})
  set(places ${root}/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE} ${root}/lib/${CMAKE_LIBRARY_ARCHITECTURE}) # or one
  foreach(name crti.o crtn.o crt1.o Scrt1.o libc_nonshared.a libc.so.6 libm.so.6 libpthread.so.0 libdl.so.2 librt.so.1 ld-linux*.so.*)
    list(TRANSFORM places APPEND /${name} OUTPUT_VARIABLE paths)
    file(GLOB found ${paths})
    if(NOT found)
      message(FATAL_ERROR "ATHANOR_LIBC: ${root} has no usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/${name}; it must be the root "
              "folder of a distribution with libc6-dev (docs/gpu.md, Installing without root)")
    endif()
    list(GET found 0 path)
    string(REGEX REPLACE "^(libm|libpthread|libdl|librt)[.]so[.].*" "\\1.so" file ${name})
    string(REPLACE "ld-linux*.so.*" loader.so file ${file})
    configure_file(${path} ${folder}/${file} COPYONLY)
  endforeach()
  file(WRITE ${folder}/libc.so "GROUP(libc.so.6 libc_nonshared.a AS_NEEDED(loader.so))\n")
  target_sources(${program} PRIVATE ${CMAKE_SOURCE_DIR}/src/older_libc.cc)
  target_link_options(${program} PRIVATE -B${folder}/ -L${folder})
  target_link_libraries(${program} PRIVATE -lm -lpthread -ldl -lrt)
endfunction()
