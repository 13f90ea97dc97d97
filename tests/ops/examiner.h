// Examiner: what one OpCase shows about a backend. Parity with the reference, the same bits in a second run and with
// any number of threads, nothing written outside the outputs, nothing left unwritten, inputs unchanged, and numerical
// gradients of forward/backward pairs. It collects Findings and fails no test itself, so that planted bugs can be
// counted; the backend is a parameter, so that any backend runs the same cases.
#pragma once
#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "ops/compare.h"
#include "tests/ops/op_case.h"
#include "tests/sanitized.h"

namespace athanor {

struct TestBackend {
  std::shared_ptr<Device> device;
  std::shared_ptr<Ops> ops;
};
using MakeBackend = std::function<TestBackend(int threads)>;

enum class Fault : uint8_t {
  wrong_value,       // differs from the reference beyond tolerance
  out_of_bounds,     // a canary next to a tensor or after the scratch memory changed
  unwritten,         // an element of an output still has its poison
  modified_input,    // an input changed
  irreproducible,    // a second run on memory with other garbage gave different bits
  thread_dependent,  // a different number of threads gave different bits
  gradient,          // the backward op is not the derivative of the forward op
  threw,
};
const char* name_of(Fault);

struct Finding {
  Fault fault;
  std::string op, tensor, detail;
};

class Examiner {
 public:
  struct Options {
    // The first is compared with the reference; none: cases are listed, not run.
    std::vector<int> threads = kSanitized ? std::vector<int>{3} : std::vector<int>{1, 2, 3, 16};
    std::string only = "";                     // examine only this op
    std::string tensor = "";                   // run only cases of ops that have this tensor
    bool stop_at_first = false;                // the first finding ends the examination
    int every = 1;                             // examine one in so many cases of an op, and all gradients
    bool gradients = true;                     // compare gradients with finite differences of the reference
    std::shared_ptr<Ops> reference = nullptr;  // default: ReferenceOps
  };
  Examiner(const MakeBackend&, Options);

  template <class Op>
  void operator()(const OpCase<Op>& c) {
    if (!take(Op::kName) || !has_tensor(c.op)) return;
    guard(Op::kName, c.name, [&] {
      const Outcome want = execute(c, reference_, 0);
      const Outcome first = execute(c, backends_[0], 1);
      judge(c.name, c.exact, first, want, [&](DType t) { return tolerance_of(c.op, t); });
      judge_same(Fault::irreproducible, c.name, first, execute(c, backends_[0], 2));
      for (size_t i = 1; i < backends_.size(); ++i)
        judge_same(Fault::thread_dependent, cat(c.name, ", ", options_.threads[i], " threads"), first,
                   execute(c, backends_[i], uint32_t(2 + i)));
    });
  }

  // Results of a case on the reference, or on the backend with the first number of threads; by tensor.
  template <class Op>
  std::vector<Result> reference_results(const OpCase<Op>& c) {
    return execute(c, reference_, 0).results;
  }
  template <class Op>
  std::vector<Result> backend_results(const OpCase<Op>& c) {
    return execute(c, backends_[0], 1).results;
  }

  // With L = sum over `upstream` (forward tensor, backward tensor) of <forward value after the run, backward value>:
  // the backend's backward tensor must hold dL/d(forward tensor) for each pair of `gradients`. Accumulating tensors
  // count by what they gain. Inputs of the backward op that `bwd` leaves open are the forward tensors of their name.
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  template <class Fwd, class Bwd>
  void gradient(const OpCase<Fwd>& fwd, OpCase<Bwd> bwd, const Pairs& upstream, const Pairs& gradients) {
    if (!take(Bwd::kName, true)) return;
    guard(Bwd::kName, bwd.name, [&] {
      const auto forward = reference_results(fwd);
      adopt(bwd.values, bwd.op, forward, upstream);
      const auto backward = backend_results(bwd);
      for (const auto& [from, to] : gradients) {
        const auto loss = [&, &name = from](const std::vector<double>& x) {
          OpCase<Fwd> moved = fwd;
          moved.values[name] = listed(x);
          return projection(reference_results(moved), upstream, backward);
        };
        judge_gradient(Bwd::kName, bwd.name, to, loss, value_before(forward, from), gained(backward, to, upstream));
      }
    });
  }

  // The backend's `tensor` after bwd must be the derivative of `loss` with respect to the initial value of `of`, which
  // defaults to `tensor`.
  template <class Bwd>
  void gradient_of(const OpCase<Bwd>& bwd, const char* tensor,
                   const std::function<double(const std::vector<double>&)>& loss, const char* of = nullptr) {
    if (!take(Bwd::kName, true)) return;
    guard(Bwd::kName, bwd.name, [&] {
      const auto results = backend_results(bwd);
      const Result &r = result(results, tensor), &x = result(results, of ? of : tensor);
      judge_gradient(Bwd::kName, bwd.name, tensor, loss, decoded(x.like.dtype, x.before),
                     decoded(r.like.dtype, r.after));
    });
  }

  bool lists() const { return backends_.empty(); }
  void note(Finding);
  const std::vector<Finding>& findings() const { return findings_; }
  const std::map<std::string, int>& seen() const { return seen_; }  // how many cases of which ops there were
  std::string report() const;                                       // one line per finding
  bool wanted(const char* op) const {
    return (options_.only.empty() || options_.only == op) && !(options_.stop_at_first && !findings_.empty());
  }

 private:
  struct Outcome {
    const char* op;
    std::vector<Result> results;
    std::vector<Finding> faults;  // memory faults: out of bounds, changed inputs, unwritten elements
  };
  using Shared = std::map<std::string, std::string>;

  template <class Op>
  Outcome execute(const OpCase<Op>& c, const TestBackend& on, uint32_t salt) {
    c.op.check();
    Op op = c.op;
    const auto fields = op.fields();
    const Shared& shared = salt ? c.shared : Shared{};  // the reference shares no memory
    const size_t planned = on.ops->scratch(c.op);
    return run_guarded(Op::kName, fields, c.values, shared, *on.device, salt, planned, [&](void* scratch) {
      CHECK(on.ops->scratch(op) == planned, "scratch(", Op::kName, ") depends on addresses");
      on.ops->run(op, scratch);
    });
  }
  Outcome run_guarded(const char* op, std::span<const Field>, const Values&, const Shared&, Device&, uint32_t salt,
                      size_t scratch_bytes, const std::function<void(void*)>& run);

  template <class Op>
  void adopt(Values& values, Op op, const std::vector<Result>& forward, const Pairs& upstream) {
    for (const Field& f : op.fields())
      if (*f.t && f.io == Io::in) adopt_one(values, f.name, forward, upstream);
  }

  template <class Op>
  bool has_tensor(Op op) const {
    const auto fields = op.fields();
    const auto is_wanted = [&](const Field& f) { return f.name == options_.tensor && *f.t; };
    return options_.tensor.empty() || std::any_of(std::begin(fields), std::end(fields), is_wanted);
  }

  bool take(const char* op, bool is_gradient = false) {
    if (!wanted(op)) return false;
    const int number = seen_[op]++;
    if (lists() || !(is_gradient ? options_.gradients : number % options_.every == 0)) return false;
    ++cases_;
    return true;
  }
  void guard(const char* op, const std::string& name, const std::function<void()>& body);
  using Tolerances = std::function<Tolerance(DType)>;
  void judge(const std::string& name, bool exact, const Outcome& got, const Outcome& want, const Tolerances&);
  void judge_same(Fault, const std::string& name, const Outcome& a, const Outcome& b);
  void judge_gradient(const char* op, const std::string& name, const std::string& tensor,
                      const std::function<double(const std::vector<double>&)>& loss, const std::vector<double>& x,
                      const std::vector<double>& analytic);
  static void adopt_one(Values&, const char* tensor, const std::vector<Result>& forward, const Pairs& upstream);
  static double projection(const std::vector<Result>& forward, const Pairs& upstream,
                           const std::vector<Result>& backward);
  static std::vector<double> value_before(const std::vector<Result>&, const std::string& tensor);
  static std::vector<double> gained(const std::vector<Result>& backward, const std::string& tensor,
                                    const Pairs& upstream);

  Options options_;
  TestBackend reference_;
  std::vector<TestBackend> backends_;
  std::vector<Finding> findings_;
  std::map<std::string, int> seen_;
  int cases_ = 0;  // examined
};

const Result& result(const std::vector<Result>&, const std::string& tensor);

}  // namespace athanor
