// Philox blocks of consecutive counters in arrays, so that the rounds vectorize; same numbers as base/rng.h.
#pragma once
#include <cstdint>

#include "cpu/simd.h"

namespace athanor {

// Position in a sequence of random numbers: random_bits(seed, stream, index), index = first, first + 1, ...
struct Noise {
  uint64_t seed, stream, first;
};

// word[k][j] = philox(seed, stream, block + j)[k]
template <int kBlocks>
struct PhiloxBlocks {
  uint32_t word[4][kBlocks];

  ATHANOR_INLINE void fill(uint64_t seed, uint64_t stream, uint64_t block) {
    uint32_t *c0 = word[0], *c1 = word[1], *c2 = word[2], *c3 = word[3];
#pragma omp simd
    for (int j = 0; j < kBlocks; ++j) {
      c0[j] = uint32_t(block + uint64_t(j));
      c1[j] = uint32_t((block + uint64_t(j)) >> 32);
      c2[j] = uint32_t(stream);
      c3[j] = uint32_t(stream >> 32);
    }
    uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
    for (int round = 0; round < 10; ++round) {
#pragma omp simd
      for (int j = 0; j < kBlocks; ++j) {
        const uint64_t p0 = uint64_t(0xD2511F53u) * c0[j], p1 = uint64_t(0xCD9E8D57u) * c2[j];
        c0[j] = uint32_t(p1 >> 32) ^ c1[j] ^ k0;
        c1[j] = uint32_t(p1);
        c2[j] = uint32_t(p0 >> 32) ^ c3[j] ^ k1;
        c3[j] = uint32_t(p0);
      }
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
  }
};

}  // namespace athanor
