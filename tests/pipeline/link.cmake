#Whole steps on ranks that are threads.
target_link_libraries(test_pipeline PRIVATE athanor_engine athanor_cpu)
