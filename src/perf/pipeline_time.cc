#include "perf/pipeline_time.h"

#include <algorithm>

#include "comm/network.h"
#include "engine/engine.h"
#include "pipeline/simulate.h"

namespace athanor {

PipelineTime pipeline_time(const Engine& engine, const Network& network, double compute, int stride) {
  const StepProgram& program = engine.stage().program();
  if (program.shape.stages == 1) return {};
  const double each = compute / double(program.shape.micro_batches);  // seconds per micro-batch
  PassTimes times{.forward = each / 3, .backward = each * 2 / 3, .weights = each / 3};
  const double without = simulate(program, times).seconds;
  // Counts the group of all stages, because the slowest transfer crosses machines if any transfer does.
  const bool within = network.within_machines(program.shape.stages, stride);
  const auto bytes = double(engine.stage_message_bytes());
  times.transfer = within ? network.seconds_to_all(bytes, 0, 2) : network.seconds_to_all(0, bytes, 2);
  return {.waits = without - compute, .sending = std::max(0.0, simulate(program, times).seconds - without)};
}

double sent_to_stages(const Engine& engine) {
  size_t messages = 0;
  for (const Actions& list : engine.stage().program().stages)
    messages = std::max(messages, size_t(std::ranges::count_if(list, sends)));
  return double(messages) * double(engine.stage_message_bytes());
}

}  // namespace athanor
