// ldmatrix and mma.sync, by the fragment tables of the PTX manual.
#include "cuda/host/instructions.h"
#include "emulator/device/formats.h"
#include "emulator/device/state.h"
namespace emu {
namespace {

// Lane i holds, of matrix m, elements 2(i%4) and 2(i%4)+1 of row i/4; transposed: of column i/4.
template <int Count, bool Transpose>
void finish_load_matrices(Lanes& lanes) {
  count_matrix_rows(lanes, Count);
  const auto row = [&](int m, int r) { return static_cast<const uint16_t*>(lanes.in[m * 8 + r]); };
  for (int m = 0; m < Count; ++m) {
    for (int i = 0; i < 32; ++i) {
      const int major = i / 4, minor = 2 * (i % 4);
      const uint32_t low = Transpose ? row(m, minor)[major] : row(m, major)[minor];
      const uint32_t high = Transpose ? row(m, minor + 1)[major] : row(m, major)[minor + 1];
      static_cast<uint32_t*>(lanes.out[i])[m] = low | high << 16;
    }
  }
}

Finish load_finish(int count, bool transpose) {
  switch (count) {
    case 1:
      return transpose ? finish_load_matrices<1, true> : finish_load_matrices<1, false>;
    case 2:
      return transpose ? finish_load_matrices<2, true> : finish_load_matrices<2, false>;
    case 4:
      return transpose ? finish_load_matrices<4, true> : finish_load_matrices<4, false>;
    default:
      fail(Fault::kConfigure, "ldmatrix of %d matrices; 1, 2 or 4 exist", count);
  }
}

struct MmaInput {
  const uint32_t *a, *b;
  ptx::MmaType type;
};

// m16n8k16. Lane 4g+t holds in A register r the elements (row g + 8(r%2), column 2t + i + 8(r/2)), in B register r
// (row 2t + i + 8r, column g).
void finish_mma(Lanes& lanes) {
  float a[16][16], b[16][8];
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const auto& in = *static_cast<const MmaInput*>(lanes.in[lane]);
    const uint32_t g = lane / 4, t = lane % 4;
    for (uint32_t i = 0; i < 2; ++i) {
      for (uint32_t r = 0; r < 4; ++r) a[g + 8 * (r % 2)][2 * t + i + 8 * (r / 2)] = decode_packed(in.a[r], i, in.type);
      for (uint32_t r = 0; r < 2; ++r) b[2 * t + i + 8 * r][g] = decode_packed(in.b[r], i, in.type);
    }
  }
  for (uint32_t lane = 0; lane < 32; ++lane) {
    auto* d = static_cast<float*>(lanes.out[lane]);
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
      float sum = d[i];
      for (uint32_t k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      d[i] = sum;
    }
  }
}
}  // namespace
}  // namespace emu

namespace emu::ptx {

void load_matrices(uint32_t* registers, int count, bool transpose, const void* row) {
  const void* caller = __builtin_return_address(0);
  if (int(self()->lane) < 8 * count) {  // the other lanes' addresses are not used
    check_aligned(row, 16, "ldmatrix row", caller);
    note(row, 16, kRead);
  }
  warp_collective(Collective::kLdmatrix, ~0u, row, registers, load_finish(count, transpose));
}

void mma(float* d, const uint32_t* a, std::array<uint32_t, 2> b, MmaType type) {
  const MmaInput in{a, b.data(), type};
  warp_collective(Collective::kMma, ~0u, &in, d, finish_mma);
}
}  // namespace emu::ptx
