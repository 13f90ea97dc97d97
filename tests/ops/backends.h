// The backends that tests of single laws run on, and typed access to device memory.
#pragma once
#include <cstring>
#include <vector>

#include "tests/ops/examiner.h"
#include "tests/ops/guarded.h"

namespace athanor {

TestBackend make_reference_backend(int threads);
TestBackend make_cpu_backend(int threads);

struct NamedBackend {
  const char* name;
  TestBackend (*make)(int threads);
};
constexpr NamedBackend kBackends[] = {{"reference", make_reference_backend}, {"cpu", make_cpu_backend}};

// A tensor [n] on a device, written and read as host vectors.
template <class T>
class OnDevice {
 public:
  OnDevice(Device& device, const std::vector<T>& values)
      : guarded_(device, Tensor{nullptr, DTypeOf<T>::value, {int64_t(values.size())}}, 1) {
    write(values);
  }
  void write(const std::vector<T>& values) {
    const auto* p = reinterpret_cast<const std::byte*>(values.data());
    guarded_.write({p, p + values.size() * sizeof(T)});
  }
  std::vector<T> read() {
    const auto bytes = guarded_.read();
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  const Tensor& t() const { return guarded_.tensor(); }

 private:
  Guarded guarded_;
};

}  // namespace athanor
