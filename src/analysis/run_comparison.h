// Compares the records of a low-precision run with those of the same run in another precision: the gap between the
// losses, and the quantization error of each matrix. Runs no training.
#pragma once
#include "metrics/run_records.h"

namespace athanor {

// Quantization statistics of one operand of a linear layer's GEMMs: totals over the run, and the single records.
struct QuantizedCourse {
  std::string layer, operand, dtype;
  std::vector<QuantizedMetrics> records;  // in order of steps
  int64_t values = 0, saturated = 0, underflowed = 0;
  double largest = 0;                                 // maximum amax; NaN if one was NaN
  double worst_saturated = 0, worst_underflowed = 0;  // fractions of values, in the worst record
  double saturated_share() const { return values ? double(saturated) / double(values) : 0; }
  double underflowed_share() const { return values ? double(underflowed) / double(values) : 0; }
};
// One entry per layer and operand that has a record, in the order of the records.
std::vector<QuantizedCourse> quantized_courses(const RunRecords&);
// Sums over layers, one entry per operand, without records; `layer` is the layer with the highest underflow in a
// record.
std::vector<QuantizedCourse> by_operand(const std::vector<QuantizedCourse>&);

// Values above these limits raise an alarm.
struct ComparisonLimits {
  double gap = 0.01;         // relative gap of the smoothed training loss and of the validation loss, at the end
  double saturated = 0.01;   // fraction of an operand's values, in any record
  double underflowed = 0.5;  // fraction of an operand's values, in any record
};

struct ComparedStep {
  int64_t step;
  double loss, reference;
  double gap;  // relative difference of the means over the last kComparisonSmoothing steps: mean / reference's mean - 1
};
constexpr size_t kComparisonSmoothing = 50;

struct RunComparison {
  std::string precision, reference;  // precision of the two runs
  std::vector<ComparedStep> steps;   // steps in both runs
  int64_t valid_step = -1;           // step of the last evaluation of `valid_data` in both runs; -1: none
  double valid_loss = kUnknown, valid_reference = kUnknown, valid_gap = kUnknown;
  std::vector<QuantizedCourse> operands;
  ComparisonLimits limits;
  std::vector<std::string> alarms;
};

// Throws Error(usage) if the runs have no step in common.
RunComparison compare_runs(const RunRecords& run, const RunRecords& reference, const ComparisonLimits&);
std::string comparison_json(const RunComparison&);
std::string comparison_summary(const RunComparison&);  // text for a terminal

}  // namespace athanor
