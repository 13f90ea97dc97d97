# OpenSSL's libcrypto. Only the static library will do: the program must run where none is installed.
find_path(ATHANOR_CRYPTO_INCLUDE openssl/evp.h REQUIRED)
find_library(ATHANOR_CRYPTO NAMES libcrypto.a REQUIRED)
target_include_directories(athanor_base SYSTEM PRIVATE ${ATHANOR_CRYPTO_INCLUDE})
target_link_libraries(athanor_base PRIVATE ${ATHANOR_CRYPTO} ${CMAKE_DL_LIBS})
