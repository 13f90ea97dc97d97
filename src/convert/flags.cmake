# Compiled at -O3: quantizers, which try many scales for every block, and GPTQ and SparseGPT, whose work grows with the
# cube of a layer's inputs. The other files copy, and are compiled at -O1 for a short build.
foreach(name ggml_search ggml_blocks32 ggml_blocks256 hessian gptq sparsegpt)
  set_source_files_properties(${CMAKE_SOURCE_DIR}/src/convert/${name}.cc PROPERTIES COMPILE_OPTIONS "$<$<CONFIG:Release>:-O3>")
endforeach()
