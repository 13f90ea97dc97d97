// Matrices in NF4 (ops/nf4.h) on the host: how a tensor's values and absmaxes lie one after the other in a record of
// bytes, and quantizing to such a record. The bits are those of bitsandbytes' CPU code, but for the mean absmax, whose
// sum is in double here.
#pragma once
#include <array>
#include <span>
#include <vector>

#include "ops/nf4.h"

namespace athanor {

// How the values of a parameter lie in memory.
enum class StoredAs : uint8_t {
  values,      // in the compute dtype
  nf4,         // as an Nf4Record for each tensor of the file
  nf4_nested,  // the same with double quantization
  // In the order of ops/int8_gemm.h, whatever that of the file is: codes [outputs, inputs] of the parameter, then from
  // the next cache line on a scale for each output; only for inference on one rank.
  int8,
  int8_outliers  // the same, and GEMMs take outliers of their inputs apart
};

// The bytes of one tensor; each part starts on a cache line.
struct Nf4Record {
  int64_t elements = 0;
  bool nested = false;
  int64_t blocks = 0, nested_blocks = 0;
  int64_t absmax_at = 0, nested_at = 0, map_at = 0, offset_at = 0;  // bytes; `packed` is at 0
  int64_t bytes = 0;

  Nf4Record(int64_t elements, bool nested);
  int64_t packed_bytes() const { return div_ceil<int64_t>(elements, 2); }
  int64_t absmax_bytes() const { return nested ? blocks : 4 * blocks; }
  // The op that dequantizes a record at this address to y [elements].
  DequantizeNf4 dequantize(void* record, const Tensor& y) const;
};

// The 256 values of a nested absmax: the signed dynamic map as torch's f32 arithmetic has it, which differs from
// ops/dynamic_map.h in the last bit of some values.
const std::array<float, 256>& nf4_map();

// Quantizes a tensor whose values come in order.
class Nf4Quantizer {
 public:
  Nf4Quantizer(int64_t elements, bool nested);
  void add(std::span<const float> values);
  std::vector<std::byte> finish();  // the record, after all values

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

// The absmaxes of a record in f32; its packed values are not looked at.
std::vector<float> nf4_absmax(std::span<const std::byte> bytes, const Nf4Record&);
// Elements [begin, end) of a tensor, in f32. packed: from the byte of element `begin` on. absmax: of all blocks.
void dequantize_nf4(const std::byte* packed, std::span<const float> absmax, int64_t begin, int64_t end, float* out);

}  // namespace athanor
