# Quantizers try many scales for every block, and GPTQ and SparseGPT work through the cube of a layer's inputs; the rest
# of the folder copies and is compiled for a short build.
foreach(name ggml_search ggml_blocks32 ggml_blocks256 hessian gptq sparsegpt)
  set_source_files_properties(${CMAKE_SOURCE_DIR}/src/convert/${name}.cc PROPERTIES COMPILE_OPTIONS "$<$<CONFIG:Release>:-O3>")
endforeach()
