// NF4 matrices (ops/nf4.h) on the host: the byte record that holds a tensor's packed values and absmaxes, and
// quantizing to it. The bits equal those of bitsandbytes' CPU code, except the mean absmax, which is summed in double
// here.
#pragma once
#include <array>
#include <span>
#include <vector>

#include "ops/nf4.h"

namespace athanor {

// Form in which the values of a parameter are stored in memory.
enum class StoredAs : uint8_t {
  values,      // values in the compute dtype
  nf4,         // one Nf4Record per tensor of the file
  nf4_nested,  // NF4 with double quantization
  // The layout of ops/int8_gemm.h, whatever the file's order: values [outputs, inputs] of the parameter, then, from the
  // next cache line on, one scale per output. Only for inference on one rank.
  int8,
  int8_outliers  // int8, and GEMMs compute outliers of their inputs separately
};

// Byte layout of one tensor's record; each part starts on a cache line.
struct Nf4Record {
  int64_t elements = 0;
  bool nested = false;
  int64_t blocks = 0, nested_blocks = 0;
  int64_t absmax_at = 0, nested_at = 0, map_at = 0, offset_at = 0;  // bytes; `packed` is at 0
  int64_t bytes = 0;

  Nf4Record(int64_t elements, bool nested);
  int64_t packed_bytes() const { return div_ceil<int64_t>(elements, 2); }
  int64_t absmax_bytes() const { return nested ? blocks : 4 * blocks; }
  // Returns the op that dequantizes a record at this address to y [elements].
  DequantizeNf4 dequantize(void* record, const Tensor& y) const;
};

// The 256 values that a nested absmax can have: bitsandbytes' signed dynamic map as torch computes it in f32. Some
// values differ from ops/dynamic_map.h in the last bit.
const std::array<float, 256>& nf4_map();

// Quantizes a tensor whose values are added in order.
class Nf4Quantizer {
 public:
  Nf4Quantizer(int64_t elements, bool nested);
  void add(std::span<const float> values);
  std::vector<std::byte> finish();  // returns the record; call after all values were added

 private:
  void quantize_block(const float* values, int64_t n);
  void nest();
  template <class T>
  T* part(int64_t at) {
    return reinterpret_cast<T*>(bytes_.data() + at);
  }

  Nf4Record record_;
  std::vector<std::byte> bytes_;
  std::vector<float> absmax_;
  std::array<float, kNf4Block> pending_ = {};
  int64_t pending_count_ = 0, done_ = 0;  // values
};

// Returns the absmaxes of a record in f32; does not read its packed values.
std::vector<float> nf4_absmax(std::span<const std::byte> bytes, const Nf4Record&);
// Dequantizes elements [begin, end) of a tensor to f32. packed: starts at the byte of element `begin`. absmax: of all
// blocks.
void dequantize_nf4(const std::byte* packed, std::span<const float> absmax, int64_t begin, int64_t end, float* out);

}  // namespace athanor
