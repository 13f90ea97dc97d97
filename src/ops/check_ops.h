// CheckOps: a backend that runs each op twice from the same inputs, on the tested backend and on a reference, and keeps
// the largest difference of each output. The run continues with the tested backend's results, so an error is reported
// where it occurs and does not accumulate. The reference runs on the host; inputs on other devices are copied.
#pragma once
#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "ops/compare.h"
#include "ops/decorate.h"

namespace athanor {

class CheckOps final : public Decorated<CheckOps> {
 public:
  // Worst differences of one output of one op in one dtype, over all launches so far.
  struct Worst {
    std::string op, tensor;
    DType dtype;
    int64_t launches = 0, failures = 0;  // failures: launches beyond tolerance_of(op, dtype)
    Difference nmse, peak;               // maxima over the launches, by each measure
    int64_t peak_launch = 0;             // number of the launch with the largest `peak`, counted over all ops from 1
    Shape peak_shape;
  };

  CheckOps(Ops& work, Device& device, Ops& reference) : work_(work), device_(device), reference_(reference) {}
  const Ops& inner() const { return work_; }
  // Compares Orthogonalize part by part, since its iterations amplify differences.
  using Decorated::fuses;
  bool fuses(const Orthogonalize&) const override { return false; }

  template <class Op>
  void on(const Op& op, void* scratch) {
    ++launches_;
    Op expected = op;  // writes to copies of outputs; its inputs are read before the tested backend overwrites them
    std::deque<std::vector<std::max_align_t>> memory;
    const auto to_host = [&](Op& of, bool inputs) {
      for (const Field& f : of.fields())
        if (*f.t && (inputs || f.io != Io::in)) *f.t = copy_of(*f.t, memory.emplace_back());
    };
    to_host(expected, !device_.unified());
    std::vector<std::max_align_t> expected_scratch(blocks(reference_.scratch(expected)));
    reference_.run(expected, expected_scratch.data());
    work_.run(op, scratch);
    Op done = op;
    if (!device_.unified()) to_host(done, false);
    const auto got = done.fields(), want = expected.fields();
    for (size_t i = 0; i < got.size(); ++i)
      if (*got[i].t && leaves_amax(got[i])) *want[i].t->template as<float>() = amax_of(*got[0].t);
    for (size_t i = 0; i < got.size(); ++i)
      if (*got[i].t && got[i].io != Io::in)
        note(Op::kName, got[i].name, *got[i].t, *want[i].t,
             {tolerance_of(expected, want[i].t->dtype), scale_of(expected, want[i].name)});
  }

  const std::vector<Worst>& worst() const { return worst_; }
  bool passed() const;         // true if each output of each launch is within tolerance
  std::string report() const;  // one line per op and tensor, failures marked

 private:
  // An `amax` output (NormFwd::amax) is checked against the amax of this backend's own output (the first field): the
  // reference may round the maximal element differently.
  static bool leaves_amax(const Field& f) { return f.io == Io::out && std::string_view(f.name) == "amax"; }
  static float amax_of(const Tensor&);
  static size_t blocks(size_t bytes) { return bytes / sizeof(std::max_align_t) + 1; }
  Tensor copy_of(const Tensor&, std::vector<std::max_align_t>& memory);  // on the host, with the same strides
  struct Allowed {
    Tolerance tolerance;
    double scale;  // see scale_of()
  };
  void note(const char* op, const char* tensor, const Tensor& got, const Tensor& want, const Allowed&);

  Ops& work_;
  Device& device_;
  Ops& reference_;
  int64_t launches_ = 0;
  std::vector<Worst> worst_;
};

}  // namespace athanor
