// wgmma: asynchronous products of a warpgroup. Accumulators hold NaN from issue to wait; operands in shared memory are
// read at the wait, so that overwriting them too early changes the result.
#include <algorithm>

#include "emulator/device/formats.h"
#include "emulator/device/wgmma_work.h"
#include "emulator/instructions.h"
namespace emu {
namespace {

using ptx::MmaType;
using ptx::Wgmma;

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
const uint8_t* element(const Block& b, const Descriptor& d, bool transposed, uint32_t bytes, uint32_t row, uint32_t k) {
  size_t a = d.start;
  if (!transposed) {  // 8 rows of 16 bytes (no swizzle) or of the swizzle width form an atom
    const uint32_t at = k * bytes;
    a += row % 8 * size_t{d.swizzle ? d.swizzle : 16} + row / 8 * d.stride + at % 16;
    a += at / 16 * (d.swizzle ? 16 : d.leading);
  } else if (d.swizzle) {
    const uint32_t width = d.swizzle / bytes;  // rows side by side in an atom
    a += row % width * bytes + row / width * d.leading + k % 8 * size_t{d.swizzle} + k / 8 * d.stride;
  } else {
    a += row % 8 * bytes + row / 8 * d.stride + k % 8 * 16 + k / 8 * d.leading;
  }
  if (d.swizzle) a ^= (a >> 7 & (d.swizzle / 16 - 1)) << 4;
  return b.window + a;
}

// Visits an operand in pieces of 16 bytes.
template <class F>
void for_pieces(const Block& b, uint64_t descriptor, bool transposed, MmaType type, uint32_t rows, F visit) {
  const Descriptor d = decode_descriptor(descriptor);
  const uint32_t bytes = element_bytes(type), depth = 32 / bytes, side = 16 / bytes;
  for (uint32_t k = 0; k < depth; k += transposed ? 1 : side) {
    for (uint32_t row = 0; row < rows; row += transposed ? side : 1) visit(element(b, d, transposed, bytes, row, k));
  }
}

template <class F>
void for_operands(const Block& b, const WgmmaWork& w, F visit) {
  if (!w.op.a_registers) for_pieces(b, w.op.a, w.op.a_transposed, w.op.a_type, 64, visit);
  for_pieces(b, w.op.b, w.op.b_transposed, w.op.b_type, uint32_t(w.op.n), visit);
}

std::vector<float> read_operand(const Block& b, uint64_t descriptor, bool transposed, MmaType type, uint32_t rows) {
  const Descriptor d = decode_descriptor(descriptor);
  const uint32_t bytes = element_bytes(type), depth = 32 / bytes;
  std::vector<float> values(size_t{rows} * depth);
  for (uint32_t row = 0; row < rows; ++row) {
    for (uint32_t k = 0; k < depth; ++k)
      values[row * depth + k] = decode_memory(element(b, d, transposed, bytes, row, k), type);
  }
  return values;
}

std::vector<float> read_a_registers(const WgmmaWork& w) {
  const uint32_t e = 4 / element_bytes(w.op.a_type), depth = 8 * e;
  std::vector<float> values(size_t{64} * depth);
  for (uint32_t thread = 0; thread < 128; ++thread) {
    const uint32_t g = thread % 32 / 4, t = thread % 4;
    for (uint32_t r = 0; r < 4; ++r) {
      for (uint32_t i = 0; i < e; ++i) {
        const uint32_t row = thread / 32 * 16 + g + 8 * (r % 2), k = t * e + i + 4 * e * (r / 2);
        values[row * depth + k] = decode_packed(w.a[thread * 4 + r], i, w.op.a_type);
      }
    }
  }
  return values;
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
  const uint32_t depth = 32 / element_bytes(w.op.a_type);
  const std::vector<float> a =
      w.op.a_registers ? read_a_registers(w) : read_operand(b, w.op.a, w.op.a_transposed, w.op.a_type, 64);
  const std::vector<float> n = read_operand(b, w.op.b, w.op.b_transposed, w.op.b_type, uint32_t(w.op.n));
  for (uint32_t thread = 0; thread < 128; ++thread) {
    auto& d = held_value(*b.threads[group * 128 + thread]->fiber, w.d[thread]);
    for (uint32_t i = 0; i < uint32_t(w.op.n) / 2; ++i) {
      const uint32_t row = thread / 32 * 16 + thread % 32 / 4 + 8 * (i / 2 % 2),
                     column = i / 4 * 8 + thread % 4 * 2 + i % 2;
      float sum = w.op.accumulate ? d[i] : 0.f;
      for (uint32_t k = 0; k < depth; ++k) sum += a[row * depth + k] * n[column * depth + k];
      d[i] = sum;
    }
  }
  w.done = true;
  w.a = {};
}

void check_form(const Wgmma& op) {
  require_hopper("wgmma");
  if (op.n < 8 || op.n > 256 || op.n % 8)
    fail(Fault::kConfigure, "wgmma: n = %d; multiples of 8 up to 256 exist", op.n);
  check_operand_types(op.a_type, op.b_type, "wgmma");
  if ((op.a_transposed || op.b_transposed) && element_bytes(op.a_type) != 2) {
    fail(Fault::kConfigure, "wgmma: only 16-bit operands can be transposed");
  }
  if (op.a_registers && op.a_transposed) fail(Fault::kConfigure, "wgmma: A in registers cannot be transposed");
}

bool same_operands(const Wgmma& x, const Wgmma& y) {
  return x.a == y.a && x.b == y.b && x.n == y.n && x.accumulate == y.accumulate && x.a_type == y.a_type &&
         x.b_type == y.b_type && !x.a_registers == !y.a_registers && x.a_transposed == y.a_transposed &&
         x.b_transposed == y.b_transposed;
}

// The true accumulators go aside, the registers become NaN.
void hold(Fiber& f, float* d, int count) {
  const bool known =
      std::any_of(f.held.begin(), f.held.end(), [d](const HeldAccumulator& h) { return h.registers == d; });
  if (!known) f.held.push_back({d, std::vector<float>(d, d + count)});
  memset(d, 0xff, size_t(count) * sizeof *d);
}
}  // namespace
}  // namespace emu

namespace emu::ptx {

void wgmma_fence() { fiber().wgmma_fenced = true; }

void wgmma(float* d, const Wgmma& op) {
  check_form(op);
  Fiber& f = fiber();
  Block& b = *f.block;
  const unsigned group = self()->linear / 128, thread = self()->linear % 128;
  if (group >= b.size / 128) fail(Fault::kWarp, "wgmma by an incomplete warpgroup");
  if (b.wgmma.empty()) b.wgmma.resize(b.size / 128);
  if (!f.wgmma_fenced) {
    fail(Fault::kProxy, "wgmma.mma_async with no wgmma.fence since the registers were last accessible");
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

void wgmma_wait(unsigned groups_left) {
  Fiber& f = fiber();
  Block& b = *f.block;
  const unsigned group = self()->linear / 128, thread = self()->linear % 128;
  if (group >= b.size / 128) fail(Fault::kWarp, "wgmma.wait_group by an incomplete warpgroup");
  f.wgmma_fenced = false;
  while (f.wgmma_groups.size() > groups_left) {
    const uint64_t upto = f.wgmma_groups.front();
    f.wgmma_groups.erase(f.wgmma_groups.begin());
    for (; f.wgmma_finished < upto; ++f.wgmma_finished) {
      WgmmaWork& w = b.wgmma[group][f.wgmma_finished];
      while (w.arrived < 128) park(Wait::kWgmma, {"a wgmma that the rest of its warpgroup has not issued"});
      if (!w.done) execute(b, group, w);
    }
  }
  const auto in_flight = [&](const HeldAccumulator& h) {
    for (uint64_t i = f.wgmma_finished; i < f.wgmma_issued; ++i) {
      if (b.wgmma[group][i].d[thread] == h.registers) return true;
    }
    return false;
  };
  for (size_t h = 0; h < f.held.size();) {  // accumulators with nothing left in flight become readable
    if (in_flight(f.held[h])) {
      ++h;
      continue;
    }
    std::copy(f.held[h].value.begin(), f.held[h].value.end(), f.held[h].registers);
    f.held.erase(f.held.begin() + long(h));
  }
}
}  // namespace emu::ptx
