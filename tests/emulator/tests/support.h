// What tests with kernels share: buffers, inputs, comparisons, planted bugs. Works on a real GPU too, where planted
// bugs are left out and each test runs once.
#pragma once
#include <cuda.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "cuda/launch.h"
#include "cuda/types.h"
#ifndef __CUDACC__
#include "emulator/device/device.h"
#include "emulator/emulator.h"
#endif

namespace athanor::cuda::testing {

inline void ok(cudaError_t e) { EXPECT_EQ(e, cudaSuccess) << cudaGetErrorString(e); }

template <class T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t count) : count_(count) { ok(cudaMalloc(&data_, count * sizeof(T))); }
  explicit DeviceBuffer(const std::vector<T>& values) : DeviceBuffer(values.size()) {
    ok(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  T* get() const { return static_cast<T*>(data_); }
  void fill(int byte) { ok(cudaMemset(data_, byte, count_ * sizeof(T))); }
  std::vector<T> read() const {  // what a failed launch leaves is NaN, and the failure is the caller's to judge
    std::vector<T> values(count_);
    memset(static_cast<void*>(values.data()), 0xff, count_ * sizeof(T));
    (void)cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost);
    return values;
  }

 private:
  void* data_ = nullptr;
  size_t count_;
};

// About normal, the same on every machine.
class Values {
 public:
  float next() {
    float sum = 0;
    for (int i = 0; i < 4; ++i) {
      state_ = state_ * 1664525u + 1013904223u;
      sum += static_cast<float>(state_ >> 8) / 16777216.f - 0.5f;
    }
    return sum;
  }
  template <class T>
  std::vector<T> vector(size_t count) {
    std::vector<T> v(count);
    for (T& x : v) x = static_cast<T>(next());
    return v;
  }

 private:
  uint32_t state_ = 1;
};

// The largest |got - want| / (absolute + relative * |want|); NaN counts as infinite. 1 or less is right.
class Error {
 public:
  void add(double got, double want, double absolute, double relative) {
    const double e = std::fabs(got - want) / (absolute + relative * std::fabs(want));
    if (!(e <= worst_)) worst_ = e == e ? e : INFINITY;
  }
  bool right() const { return worst_ <= 1; }
  double worst() const { return worst_; }

 private:
  double worst_ = 0;
};

// `run` launches, and compares with a reference.
using Run = std::function<void(Error&)>;
inline bool has_capability(int major) {
  int have = 0;
  return cudaDeviceGetAttribute(&have, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess && have >= major;
}

#ifdef __CUDACC__
inline void expect_sound(const Run& run, int = 1) {
  Error error;
  run(error);
  ok(cudaDeviceSynchronize());
  EXPECT_LE(error.worst(), 1);
}
#else
// Right numbers and no fault, over so many schedules.
inline void expect_sound(const Run& run, int seeds = 5) {
  for (int s = 1; s <= seeds; ++s) {
    emu::seed(s);
    Error error;
    run(error);
    (void)cudaDeviceSynchronize();
    const emu::Report report = emu::take_report();
    ASSERT_EQ(report.fault, emu::Fault::kNone) << "seed " << s << ": " << report.text;
    ASSERT_LE(error.worst(), 1) << "seed " << s;
  }
}

// Do the results keep every bit when the schedule changes? Sums in an order that schedules decide do not.
template <class T>
bool same_bits_over_schedules(const std::function<std::vector<T>()>& run, int seeds = 10) {
  std::vector<T> first;
  for (int s = 1; s <= seeds; ++s) {
    emu::seed(s);
    const std::vector<T> bits = run();
    if (s == 1) first = bits;
    if (bits.size() != first.size() || memcmp(bits.data(), first.data(), bits.size() * sizeof(T)) != 0) return false;
  }
  return true;
}

// A planted bug is noticed under each of ten schedules: by one of these faults, or by wrong numbers where kNone is
// among them. Fast builds do not watch plain accesses; there it is enough that nothing breaks unless `in_fast` says
// more.
inline void expect_found(const std::set<emu::Fault>& faults, const Run& run, bool in_fast = false) {
  for (int s = 1; s <= 10; ++s) {
    emu::seed(s);
    Error error;
    run(error);
    (void)cudaDeviceSynchronize();
    const emu::Report report = emu::take_report();
    if (!emu::kChecking && !in_fast) continue;
    if (report.fault != emu::Fault::kNone) {
      EXPECT_TRUE(faults.count(report.fault)) << "seed " << s << ": " << report.text;
    } else {
      EXPECT_TRUE(faults.count(emu::Fault::kNone) && !error.right()) << "seed " << s << ": not noticed";
    }
  }
}
#endif
}  // namespace athanor::cuda::testing
