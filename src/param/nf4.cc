#include "param/nf4.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/int.h"

namespace athanor {
namespace {

constexpr int64_t kLine = 64;  // bytes

// Bounds between neighbouring NF4 values, in f32: a number rounds to value i if it is above bound i - 1 and not above
// bound i.
constexpr std::array<float, 15> bounds_of_values() {
  std::array<float, 15> all{};
  for (size_t i = 0; i < all.size(); ++i) all[i] = (kNf4.value[i] + kNf4.value[i + 1]) / 2;
  return all;
}
constexpr std::array<float, 15> kBounds = bounds_of_values();

// The outer loop is over bounds, so that vector instructions compare the values of a block.
std::array<uint32_t, kNf4Block> nearest_values(const std::array<float, kNf4Block>& x) {
  std::array<uint32_t, kNf4Block> above{};
  for (const float bound : kBounds)
#pragma omp simd
    for (size_t i = 0; i < x.size(); ++i) above[i] += x[i] > bound;
  return above;
}

// [torch.linspace(0.1, 1, parts + 1), f32]: counts multiples of the step from either end, each rounded once.
std::array<float, 256> make_map() {
  constexpr float kDecades[] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
  std::array<float, 256> map{};
  size_t next = 128;
  for (int i = 0; i < 7; ++i) {
    const int parts = 1 << i;
    const double first = double(0.1f), step = double((1.0f - 0.1f) / float(parts));
    const auto boundary = [&](int k) {
      return k < (parts + 1) / 2 ? float(first + step * k) : float(1.0 - step * (parts - k));
    };
    for (int k = 0; k < parts; ++k, ++next) {
      map[next] = kDecades[i] * ((boundary(k) + boundary(k + 1)) / 2);
      map[254 - next] = -map[next];
    }
  }
  map[255] = 1;
  return map;
}

// bitsandbytes' CPU code rounds x to one of 65536 points between -1 and 1, and takes the map value nearest to that.
uint8_t nearest_in_map(const std::array<float, 256>& map, float share) {
  constexpr float kPlaces = 65535;
  const float place = std::floor((std::clamp(share, -1.0f, 1.0f) + 1.0f) * 0.5f * kPlaces + 0.5f);
  const float x = -1.0f + 2.0f * place / kPlaces;
  size_t index = 0;
  for (size_t step = 128; step > 0; step /= 2)
    if (0.5f * (map[index + step - 1] + map[index + step]) < x) index += step;
  return uint8_t(index);
}

float amax_of(const float* values, int64_t n) {
  float amax = 0;
#pragma omp simd reduction(max : amax)
  for (int64_t i = 0; i < n; ++i) amax = std::max(amax, std::fabs(values[i]));
  return amax;
}

}  // namespace

const std::array<float, 256>& nf4_map() {
  static const std::array<float, 256> map = make_map();
  return map;
}

Nf4Record::Nf4Record(int64_t count, bool is_nested)
    : elements(count),
      nested(is_nested),
      blocks(div_ceil(count, kNf4Block)),
      nested_blocks(is_nested ? div_ceil(blocks, kNf4NestedBlock) : 0) {
  const auto after = [](int64_t at, int64_t size) { return round_up(at + size, kLine); };
  absmax_at = after(0, packed_bytes());
  nested_at = after(absmax_at, absmax_bytes());
  map_at = after(nested_at, 4 * nested_blocks);
  offset_at = nested ? after(map_at, 4 * kNf4MapSize) : map_at;
  bytes = nested ? after(offset_at, 4) : offset_at;
}

DequantizeNf4 Nf4Record::dequantize(void* record, const Tensor& y) const {
  const auto part = [&](int64_t at, DType dtype, int64_t n) {
    return Tensor{static_cast<std::byte*>(record) + at, dtype, {n}};
  };
  DequantizeNf4 op{.y = y.view({elements}),
                   .packed = part(0, DType::u8, packed_bytes()),
                   .absmax = part(absmax_at, nested ? DType::u8 : DType::f32, blocks)};
  if (!nested) return op;
  op.nested_absmax = part(nested_at, DType::f32, nested_blocks);
  op.map = part(map_at, DType::f32, kNf4MapSize);
  op.offset = part(offset_at, DType::f32, 1);
  return op;
}

Nf4Quantizer::Nf4Quantizer(int64_t elements, bool nested)
    : record_(elements, nested), bytes_(size_t(record_.bytes)), absmax_(size_t(record_.blocks)) {}

void Nf4Quantizer::add(std::span<const float> values) {
  CHECK(done_ + pending_count_ + int64_t(values.size()) <= record_.elements, "more values than the tensor has");
  while (!values.empty()) {
    if (pending_count_ == 0 && int64_t(values.size()) >= kNf4Block) {
      quantize_block(values.data(), kNf4Block);
      values = values.subspan(size_t(kNf4Block));
      continue;
    }
    const int64_t n = std::min(kNf4Block - pending_count_, int64_t(values.size()));
    std::copy_n(values.data(), n, pending_.data() + pending_count_);
    pending_count_ += n;
    values = values.subspan(size_t(n));
    if (pending_count_ < kNf4Block) break;
    quantize_block(pending_.data(), kNf4Block);
    pending_count_ = 0;
  }
}

// Whole blocks are multiplied by 1 / absmax; a short last block is divided by its absmax. Both are kept from being 0.
void Nf4Quantizer::quantize_block(const float* values, int64_t n) {
  constexpr float kSmallest = 1e-38f;
  const bool whole = n == kNf4Block;
  float amax = amax_of(values, n);
  if (!whole) amax = std::max(amax, kSmallest);
  absmax_[size_t(done_ / kNf4Block)] = amax;
  const float inverse = 1.0f / std::max(amax, kSmallest);
  std::array<float, kNf4Block> shares{};
  for (int64_t i = 0; i < n; ++i) shares[size_t(i)] = whole ? values[i] * inverse : values[i] / amax;
  const std::array<uint32_t, kNf4Block> nearest = nearest_values(shares);
  auto* packed = part<uint8_t>(done_ / 2);
  for (int64_t i = 0; i < div_ceil<int64_t>(n, 2); ++i)
    packed[i] = uint8_t(nearest[size_t(2 * i)] << 4 | nearest[size_t(2 * i + 1)]);
  done_ += n;
}

void Nf4Quantizer::nest() {
  const std::array<float, 256>& map = nf4_map();
  double sum = 0;
  for (const float a : absmax_) sum += double(a);
  const auto offset = float(sum / double(absmax_.size()));
  for (float& a : absmax_) a -= offset;
  auto* absmax = part<uint8_t>(record_.absmax_at);
  auto* nested = part<float>(record_.nested_at);
  for (int64_t b = 0; b < record_.nested_blocks; ++b) {
    const int64_t first = b * kNf4NestedBlock, n = std::min(kNf4NestedBlock, record_.blocks - first);
    const float amax = amax_of(absmax_.data() + first, n), inverse = 1.0f / amax;
    nested[b] = amax;
    for (int64_t i = first; i < first + n; ++i)
      absmax[i] = amax == 0 ? uint8_t(0) : nearest_in_map(map, absmax_[size_t(i)] * inverse);
  }
  std::copy(map.begin(), map.end(), part<float>(record_.map_at));
  *part<float>(record_.offset_at) = offset;
}

std::vector<std::byte> Nf4Quantizer::finish() {
  if (pending_count_ > 0) quantize_block(pending_.data(), pending_count_);
  CHECK(done_ == record_.elements, "quantized ", done_, " values of ", record_.elements);
  if (record_.nested)
    nest();
  else
    std::copy(absmax_.begin(), absmax_.end(), part<float>(record_.absmax_at));
  return std::move(bytes_);
}

std::vector<float> nf4_absmax(std::span<const std::byte> bytes, const Nf4Record& record) {
  CHECK(int64_t(bytes.size()) == record.bytes, "a record of ", bytes.size(), " bytes, expected ", record.bytes);
  std::vector<float> absmax(size_t(record.blocks));
  const std::byte* stored = bytes.data() + record.absmax_at;
  if (!record.nested) {
    std::memcpy(absmax.data(), stored, absmax.size() * sizeof(float));
    return absmax;
  }
  const auto* nested = reinterpret_cast<const float*>(bytes.data() + record.nested_at);
  const auto* map = reinterpret_cast<const float*>(bytes.data() + record.map_at);
  const float offset = *reinterpret_cast<const float*>(bytes.data() + record.offset_at);
  for (int64_t i = 0; i < record.blocks; ++i) {
    const float product = map[static_cast<size_t>(stored[i])] * nested[i / kNf4NestedBlock];
    absmax[size_t(i)] = product + offset;
  }
  return absmax;
}

void dequantize_nf4(const std::byte* packed, std::span<const float> absmax, int64_t begin, int64_t end, float* out) {
  for (int64_t i = begin; i < end; ++i) {
    const auto pair = static_cast<uint8_t>(packed[i / 2 - begin / 2]);
    out[i - begin] = kNf4.value[i % 2 == 0 ? pair >> 4 : pair & 15] * absmax[size_t(i / kNf4Block)];
  }
}

}  // namespace athanor
