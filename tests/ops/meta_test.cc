// The harness can fail: every kind of bug, planted in every tensor of every op, is found and named.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "reference/reference_ops.h"
#include "tests/ops/cases.h"
#include "tests/ops/host_device.h"
#include "tests/ops/sabotage.h"
#include "tests/sanitized.h"

namespace athanor {
namespace {

struct Target {
  std::string op, tensor;
  Io io;
  bool operator<(const Target& o) const { return std::tie(op, tensor) < std::tie(o.op, o.tensor); }
};

// Every tensor of every op.
std::set<Target> all_targets() {
  std::set<Target> all;
  const auto add = [&]<class Op>(Op op) {
    for (const Field& f : op.fields()) all.insert({Op::kName, f.name, f.io});
  };
#define ATHANOR_ADD(Op) add(Op{});
  ATHANOR_EACH_OP(ATHANOR_ADD)
#undef ATHANOR_ADD
  return all;
}
const std::set<Target> kTargets = all_targets();

// Those that bugs are planted in.
std::vector<Target> planted() {
  const size_t step = kSanitized ? 10 : 1;
  size_t number = 0;
  std::vector<Target> all;
  for (const Target& t : kTargets)
    if (number++ % step == 0) all.push_back(t);
  return all;
}

MakeBackend sabotaged(const Sabotage::Plan& plan) {
  return [plan](int threads) {
    Sabotage::Plan mine = plan;
    mine.threads = threads;
    return TestBackend{std::make_shared<HostDevice>(), std::make_shared<Sabotage>(make_reference(), mine)};
  };
}

// The families that have cases of each op.
std::map<std::string, std::vector<Family>> families_of_ops() {
  std::map<std::string, std::vector<Family>> map;
  for (const Family& family : kFamilies) {
    Examiner examine(sabotaged({"", "", Fault::threw}), {.threads = {}});
    family.run(examine);
    for (const auto& [op, cases] : examine.seen()) map[op].push_back(family);
  }
  return map;
}
const std::map<std::string, std::vector<Family>> kFamiliesOf = families_of_ops();

// The first finding of the cases of plan.op, or nothing.
std::vector<Finding> findings(const Sabotage::Plan& plan, std::shared_ptr<Ops> reference = nullptr) {
  Examiner examine(sabotaged(plan),
                   {.threads = {1, 3},
                    .only = plan.op,
                    .tensor = plan.tensor,
                    .stop_at_first = true,
                    .every = reference ? 100 : 1,  // a bug shared with the reference only shows in gradients
                    .reference = std::move(reference)});
  for (const Family& family : kFamiliesOf.at(plan.op)) family.run(examine);
  return examine.findings();
}

void expect_found(const Sabotage::Plan& plan) {
  const auto found = findings(plan);
  const std::string what = cat(plan.op, ".", plan.tensor, ": planted '", name_of(plan.fault), "'");
  ASSERT_FALSE(found.empty()) << what;
  EXPECT_EQ(found[0].op, plan.op) << what;
  EXPECT_EQ(found[0].fault, plan.fault) << what << ", found " << name_of(found[0].fault) << found[0].detail;
  EXPECT_EQ(found[0].tensor, plan.fault == Fault::threw ? "" : plan.tensor) << what;
}

TEST(Harness, HasCasesForEveryOp) {
  for (const Target& t : kTargets) EXPECT_EQ(kFamiliesOf.count(t.op), 1u) << t.op;
}

TEST(Harness, FindsWrongValues) {
  for (const Target& t : planted())
    if (t.io != Io::in) expect_found({t.op, t.tensor, Fault::wrong_value});
}

TEST(Harness, FindsOutOfBoundsWritesOfEveryTensor) {
  for (const Target& t : planted()) expect_found({t.op, t.tensor, Fault::out_of_bounds});
}

TEST(Harness, FindsModifiedInputs) {
  for (const Target& t : planted())
    if (t.io == Io::in) expect_found({t.op, t.tensor, Fault::modified_input});
}

TEST(Harness, FindsUnwrittenElements) {
  for (const Target& t : planted())
    // An unwritten byte of pack_groups is found as a wrong value: single bytes have no canary value.
    if (t.io == Io::out && t.op != "fill" && t.op != "pack_groups") expect_found({t.op, t.tensor, Fault::unwritten});
  expect_found({"fill", "x", Fault::unwritten});
}

TEST(Harness, FindsNondeterministicResults) {
  for (const Target& t : planted())
    if (t.io != Io::in) {
      expect_found({t.op, t.tensor, Fault::irreproducible});
      expect_found({t.op, t.tensor, Fault::thread_dependent});
    }
}

TEST(Harness, FindsExceptions) { expect_found({"gemm", "a", Fault::threw}); }

// Reference and backend share the bug, so that parity holds and only the derivative is wrong.
TEST(Harness, FindsWrongGradients) {
  for (const auto& [op, tensor] : std::vector<std::pair<std::string, std::string>>{{"gemm", "d"},
                                                                                   {"column_sum", "out"},
                                                                                   {"norm_bwd", "dh"},
                                                                                   {"norm_bwd", "dw"},
                                                                                   {"norm_bwd", "db"},
                                                                                   {"qk_norm_bwd", "dx"},
                                                                                   {"qk_norm_bwd", "dwq"},
                                                                                   {"qk_norm_bwd", "dwk"},
                                                                                   {"attention_bwd", "dq"},
                                                                                   {"attention_bwd", "dk"},
                                                                                   {"attention_bwd", "dv"},
                                                                                   {"rope", "x"},
                                                                                   {"gelu_bwd", "dx"},
                                                                                   {"swiglu_bwd", "dgu"},
                                                                                   {"activation_bwd", "dx"},
                                                                                   {"scaled_sum_bwd", "dx"},
                                                                                   {"scaled_sum_bwd", "dz"},
                                                                                   {"scaled_sum_bwd", "da"},
                                                                                   {"scaled_sum_bwd", "db"},
                                                                                   {"embedding_bwd", "dwte"},
                                                                                   {"embedding_bwd", "dwpe"},
                                                                                   {"cross_entropy", "logits"}}) {
    const Sabotage::Plan plan{op, tensor, Fault::gradient};
    const auto found = findings(plan, std::make_shared<Sabotage>(make_reference(), plan));
    ASSERT_FALSE(found.empty()) << op << "." << tensor;
    EXPECT_EQ(found[0].fault, Fault::gradient) << op << "." << tensor << " " << found[0].detail;
    EXPECT_EQ(found[0].tensor, tensor);
  }
}

}  // namespace
}  // namespace athanor
