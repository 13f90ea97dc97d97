# Memory-bound kernels vectorise better when the compiler need not keep floating-point exception flags, which nothing
# reads. Where e^x dominates, a product and a sum may fuse; elsewhere they do not, so that repeated work repeats its bits.
target_compile_options(athanor_cpu PRIVATE -fno-trapping-math)
foreach(name mlp loss distill top_logits)
  set_source_files_properties(${CMAKE_SOURCE_DIR}/src/cpu/${name}.cc PROPERTIES COMPILE_OPTIONS -ffp-contract=fast)
endforeach()
# The inner loops of GEMMs and attention: every product feeds a sum, and fuses with it.
foreach(name kernel_avx512 kernel_avx2 kernel_baseline)
  set_source_files_properties(${CMAKE_SOURCE_DIR}/src/cpu/${name}.cc PROPERTIES
    COMPILE_OPTIONS "-ffp-contract=fast;-Wno-psabi")
endforeach()
