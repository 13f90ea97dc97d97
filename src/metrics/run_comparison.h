// Compares the records of a run in low precision with those of the same run in another precision: the gap of the
// losses, and what quantization did to each matrix. Runs nothing.
#pragma once
#include "metrics/run_records.h"

namespace athanor {

// What a run lost by rounding one operand of a linear layer's products: one sum, and its records one by one.
struct QuantizedCourse {
  std::string layer, operand, codes;
  std::vector<QuantizedMetrics> records;  // by step
  int64_t values = 0, saturated = 0, underflowed = 0;
  double largest = 0;                                 // NaN if one was
  double worst_saturated = 0, worst_underflowed = 0;  // shares of values, in the worst record
  double saturated_share() const { return values ? double(saturated) / double(values) : 0; }
  double underflowed_share() const { return values ? double(underflowed) / double(values) : 0; }
};
// One for every layer and operand with a record, in the order of the records.
std::vector<QuantizedCourse> quantized_courses(const RunRecords&);
// Sums over layers, one for each operand, without records; `layer` is the one whose worst record underflowed most.
std::vector<QuantizedCourse> by_operand(const std::vector<QuantizedCourse>&);

// Above these is an alarm.
struct ComparisonLimits {
  double gap = 0.01;         // of the smoothed training loss and of the held-out loss, relative, at the end
  double saturated = 0.01;   // share of the values of an operand, in any record
  double underflowed = 0.5;  // the same
};

struct ComparedStep {
  int64_t step;
  double loss, reference;
  double gap;  // of the means over the last kComparisonSmoothing steps: mean / reference's mean - 1
};
constexpr size_t kComparisonSmoothing = 50;

struct RunComparison {
  std::string precision, reference;  // of the two runs
  std::vector<ComparedStep> steps;   // that both have
  int64_t valid_step = -1;           // of the last evaluation of `valid_data` that both have; -1: none
  double valid_loss = kUnknown, valid_reference = kUnknown, valid_gap = kUnknown;
  std::vector<QuantizedCourse> operands;
  ComparisonLimits limits;
  std::vector<std::string> alarms;
};

// Error(usage) where the runs have no step in common.
RunComparison compare_runs(const RunRecords& run, const RunRecords& reference, const ComparisonLimits&);
std::string comparison_json(const RunComparison&);
std::string comparison_summary(const RunComparison&);  // for a terminal

}  // namespace athanor
