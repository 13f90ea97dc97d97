// wgmma: asynchronous products of a warpgroup. Accumulators hold NaN from issue until a wait that names them; operands
// in shared memory are read at the wait, so that overwriting them too early changes the result.
#include <algorithm>

#include "cuda/host/instructions.h"
#include "emulator/device/formats.h"
#include "emulator/device/wgmma_work.h"
namespace emu {
namespace {

using ptx::MmaType;
using ptx::Wgmma;

constexpr uint32_t kBytes = 2, kDepth = 16;  // of an element; k

// A matrix descriptor, see "Matrix Descriptor Format" of the PTX manual; sizes in bytes.
struct Descriptor {
  size_t start, leading, stride;
  uint32_t swizzle;  // 0, 32, 64 or 128
};
Descriptor decode_descriptor(uint64_t d) {
  constexpr uint32_t kSwizzles[] = {0, 128, 64, 32};
  if (d >> 49 & 7)
    fail(Fault::kRefused, "wgmma descriptor: a base offset is not emulated; align the tile to its swizzle");
  return {(d & 0x3fff) << 4, (d >> 16 & 0x3fff) << 4, (d >> 32 & 0x3fff) << 4, kSwizzles[d >> 62]};
}

// Address of element (row, k) of an operand in one of the canonical layouts; `transposed`: rows are contiguous.
const uint8_t* element(const Block& b, const Descriptor& d, bool transposed, uint32_t row, uint32_t k) {
  size_t a = d.start;
  if (!transposed) {  // 8 rows of 16 bytes (no swizzle) or of the swizzle width form an atom
    const uint32_t at = k * kBytes;
    a += row % 8 * size_t{d.swizzle ? d.swizzle : 16} + row / 8 * d.stride + at % 16;
    a += at / 16 * (d.swizzle ? 16 : d.leading);
  } else if (d.swizzle) {
    const uint32_t width = d.swizzle / kBytes;  // rows side by side in an atom
    a += row % width * kBytes + row / width * d.leading + k % 8 * size_t{d.swizzle} + k / 8 * d.stride;
  } else {
    a += row % 8 * kBytes + row / 8 * d.stride + k % 8 * 16 + k / 8 * d.leading;
  }
  if (d.swizzle) a ^= (a >> 7 & (d.swizzle / 16 - 1)) << 4;
  return b.window + a;
}

// Visits an operand in pieces of 16 bytes.
template <class F>
void for_pieces(const Block& b, uint64_t descriptor, bool transposed, uint32_t rows, F visit) {
  const Descriptor d = decode_descriptor(descriptor);
  for (uint32_t k = 0; k < kDepth; k += transposed ? 1 : 8) {
    for (uint32_t row = 0; row < rows; row += transposed ? 8 : 1) visit(element(b, d, transposed, row, k));
  }
}

template <class F>
void for_operands(const Block& b, const WgmmaWork& w, F visit) {
  if (!w.op.a_registers) for_pieces(b, w.op.a, w.op.a_transposed, 64, visit);
  for_pieces(b, w.op.b, w.op.b_transposed, uint32_t(w.op.n), visit);
}

std::vector<float> read_operand(const Block& b, uint64_t descriptor, bool transposed, MmaType type, uint32_t rows) {
  const Descriptor d = decode_descriptor(descriptor);
  std::vector<float> values(size_t{rows} * kDepth);
  for (uint32_t row = 0; row < rows; ++row) {
    for (uint32_t k = 0; k < kDepth; ++k) {
      uint16_t raw;
      memcpy(&raw, element(b, d, transposed, row, k), sizeof raw);
      values[row * kDepth + k] = decode(raw, type);
    }
  }
  return values;
}

std::vector<float> read_a_registers(const WgmmaWork& w) {
  std::vector<float> values(size_t{64} * kDepth);
  for (uint32_t thread = 0; thread < 128; ++thread) {
    const uint32_t g = thread % 32 / 4, t = thread % 4;
    for (uint32_t r = 0; r < 4; ++r) {
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t row = thread / 32 * 16 + g + 8 * (r % 2), k = 2 * t + i + 8 * (r / 2);
        values[row * kDepth + k] = decode_packed(w.a[thread * 4 + r], i, w.op.type);
      }
    }
  }
  return values;
}

bool contains(const ptx::Registers& range, const void* p) {
  return size_t(static_cast<const char*>(p) - static_cast<const char*>(range.begin)) < range.bytes;
}

std::vector<float>& held_value(Fiber& f, const float* registers) {
  for (HeldAccumulator& h : f.held) {
    if (h.registers == registers) return h.value;
  }
  fail(Fault::kConfigure, "wgmma accumulators moved between issue and wait");
}

void execute(Block& b, unsigned group, WgmmaWork& w) {
  for_operands(b, w, [](const uint8_t* p) {
    check_range_live(p, 16, "wgmma operand overwritten by an asynchronous copy before wgmma.wait_group");
  });
  const std::vector<float> a =
      w.op.a_registers ? read_a_registers(w) : read_operand(b, w.op.a, w.op.a_transposed, w.op.type, 64);
  const std::vector<float> n = read_operand(b, w.op.b, w.op.b_transposed, w.op.type, uint32_t(w.op.n));
  const auto columns = uint32_t(w.op.n);
  std::vector<float> across(n.size());  // [kDepth, columns], so that the loop over columns is fast
  for (uint32_t column = 0; column < columns; ++column)
    for (uint32_t k = 0; k < kDepth; ++k) across[k * columns + column] = n[column * kDepth + k];
  std::vector<float*> sums(128);
  for (uint32_t thread = 0; thread < 128; ++thread)
    sums[thread] = held_value(*b.threads[group * 128 + thread]->fiber, w.d[thread]).data();
  for (uint32_t row = 0; row < 64; ++row) {
    const auto sum_at = [&](uint32_t column) -> float& {
      return sums[row / 16 * 32 + row % 8 * 4 + column % 8 / 2][column / 8 * 4 + row / 8 % 2 * 2 + column % 2];
    };
    float line[256];
    for (uint32_t column = 0; column < columns; ++column) line[column] = w.op.accumulate ? sum_at(column) : 0.f;
    for (uint32_t k = 0; k < kDepth; ++k)
      for (uint32_t column = 0; column < columns; ++column)
        line[column] += a[row * kDepth + k] * across[k * columns + column];
    for (uint32_t column = 0; column < columns; ++column) sum_at(column) = line[column];
  }
  w.done = true;
  w.a = {};
}

void check_form(const Wgmma& op) {
  require_hopper("wgmma");
  if (op.n < 8 || op.n > 256 || op.n % 8)
    fail(Fault::kConfigure, "wgmma: n = %d; multiples of 8 up to 256 exist", op.n);
  if (op.a_registers && op.a_transposed) fail(Fault::kConfigure, "wgmma: A in registers cannot be transposed");
}

bool same_operands(const Wgmma& x, const Wgmma& y) {
  return x.a == y.a && x.b == y.b && x.n == y.n && x.accumulate == y.accumulate && x.type == y.type &&
         !x.a_registers == !y.a_registers && x.a_transposed == y.a_transposed && x.b_transposed == y.b_transposed;
}

void check_unwritten(const HeldAccumulator& h) {
  for (size_t i = 0; i < h.value.size(); ++i) {
    uint32_t bits;
    memcpy(&bits, h.registers + i, sizeof bits);
    if (bits != ~0u) fail(Fault::kInFlight, "wgmma accumulators written before a wgmma.wait_group that names them");
  }
}

// The true accumulators go aside, the registers become NaN.
void hold(Fiber& f, float* d, int count) {
  for (const HeldAccumulator& h : f.held) {
    if (h.registers == d) return check_unwritten(h);
  }
  f.held.push_back({d, std::vector<float>(d, d + count)});
  memset(d, 0xff, size_t(count) * sizeof *d);
}

// The registers of finished products become readable.
void give_back(Fiber& f, const ptx::Registers& range) {
  for (size_t k = 0; k < f.held.size();) {
    HeldAccumulator& h = f.held[k];
    if (!contains(range, h.registers)) {
      ++k;
      continue;
    }
    const auto& queue = f.block->wgmma[self()->linear / 128];
    for (uint64_t i = f.wgmma_finished; i < f.wgmma_issued; ++i) {
      if (queue[i].d[self()->linear % 128] == h.registers)
        fail(Fault::kInFlight, "wgmma.wait_group names accumulators of a product that it leaves in flight");
    }
    check_unwritten(h);
    std::copy(h.value.begin(), h.value.end(), h.registers);
    f.held.erase(f.held.begin() + long(k));
  }
}
}  // namespace
}  // namespace emu

namespace emu::ptx {

void check_matrix(const void* tile, unsigned swizzle, uint32_t leading, uint32_t stride) {
  constexpr size_t kAlignment[] = {16, 1024, 512, 256};
  check_aligned(tile, kAlignment[swizzle], "wgmma matrix");
  for (const uint32_t offset : {leading, stride}) {
    if (offset % 16 || offset >= 1u << 18)
      fail(Fault::kConfigure, "wgmma descriptor: an offset of %u bytes; multiples of 16 below 2^18 are possible",
           offset);
  }
}

void wgmma_fence(std::initializer_list<Registers> taken) {
  Fiber& f = fiber();
  f.taken.insert(f.taken.end(), taken.begin(), taken.end());
}

void wgmma(float* d, const Wgmma& op) {
  check_form(op);
  Fiber& f = fiber();
  Block& b = *f.block;
  const unsigned group = self()->linear / 128, thread = self()->linear % 128;
  if (group >= b.size / 128) fail(Fault::kWarp, "wgmma by an incomplete warpgroup");
  if (b.wgmma.empty()) b.wgmma.resize(b.size / 128);
  for (const void* registers : {static_cast<const void*>(d), static_cast<const void*>(op.a_registers)}) {
    const auto here = [registers](const Registers& range) { return contains(range, registers); };
    if (registers && std::none_of(f.taken.begin(), f.taken.end(), here))
      fail(Fault::kProxy, "wgmma.mma_async with no wgmma.fence for its registers since the last wgmma.wait_group");
  }
  auto& queue = b.wgmma[group];
  const uint64_t k = f.wgmma_issued++;
  if (k == queue.size()) {
    queue.emplace_back();
    queue.back().op = op;
    if (op.a_registers) queue.back().a.resize(512);
  }
  WgmmaWork& w = queue[k];
  if (!same_operands(w.op, op)) fail(Fault::kWarp, "wgmma: operands differ within the warpgroup");
  hold(f, d, op.n / 2);
  w.d[thread] = d;
  if (op.a_registers) std::copy_n(op.a_registers, 4, w.a.begin() + thread * 4);
  if (thread % 32 == 0) for_operands(b, w, [](const uint8_t* p) { note(p, 16, kRead | kAsyncProxy); });
  if (++w.arrived < 128) return;
  for (unsigned i = 0; i < 128; ++i) {
    Thread* t = b.threads[group * 128 + i];
    if (t->fiber->waiting == Wait::kWgmma) wake(t);
  }
}

void wgmma_commit() { fiber().wgmma_groups.push_back(fiber().wgmma_issued); }

void wgmma_wait(unsigned groups_left, std::initializer_list<Registers> results) {
  Fiber& f = fiber();
  Block& b = *f.block;
  const unsigned group = self()->linear / 128;
  if (group >= b.size / 128) fail(Fault::kWarp, "wgmma.wait_group by an incomplete warpgroup");
  f.taken.clear();
  while (f.wgmma_groups.size() > groups_left) {
    const uint64_t upto = f.wgmma_groups.front();
    f.wgmma_groups.erase(f.wgmma_groups.begin());
    for (; f.wgmma_finished < upto; ++f.wgmma_finished) {
      WgmmaWork& w = b.wgmma[group][f.wgmma_finished];
      while (w.arrived < 128) park(Wait::kWgmma, {"a wgmma that the rest of its warpgroup has not issued"});
      if (!w.done) execute(b, group, w);
    }
  }
  for (const Registers& range : results) give_back(f, range);
}
}  // namespace emu::ptx
