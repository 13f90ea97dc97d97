// Joins of vector clocks.
#include "emulator/device/clock.h"

#include <algorithm>
namespace emu {

void join(Ticks& into, const Ticks& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

namespace {
bool covers(const Ticks& a, const Ticks& b) {
  for (size_t i = 0; i < b.size(); ++i) {
    if (b[i] > (i < a.size() ? a[i] : 0)) return false;
  }
  return true;
}
}  // namespace

void join(Others& into, const Others& from) {
  if (!from || into == from) return;
  if (!into) {
    into = from;
    return;
  }
  auto merged = std::make_shared<Knowledge>(*into);
  for (const auto& [block, ticks] : *from) {
    auto [entry, fresh] = merged->emplace(block, ticks);
    if (fresh || entry->second == ticks || covers(*entry->second, *ticks)) continue;
    auto both = std::make_shared<Ticks>(*entry->second);
    join(*both, *ticks);
    entry->second = std::move(both);
  }
  into = std::move(merged);
}
}  // namespace emu
