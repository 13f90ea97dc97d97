#include "perf/assumptions.h"

#include <charconv>
#include <cmath>

#include "base/error.h"

namespace athanor {
namespace {

constexpr Assumption kRows[] = {
    {"gemms", &Assumptions::gemms, "share of the rate of a large GEMM"},
    {"quantized", &Assumptions::quantized, "share of the rate of a large GEMM in 8 or 4 bits"},
    {"attention", &Assumptions::attention, "share of the published rate"},
    {"copies", &Assumptions::copies, "share of the rate of a large copy"},
    {"links", &Assumptions::links, "share of the bandwidth within a node"},
    {"network", &Assumptions::network, "share of the bandwidth between nodes"},
    {"host", &Assumptions::host, "share of the bandwidth to host memory"},
    {"latency", &Assumptions::latency, "factor of a collective's latency"},
    {"launch", &Assumptions::launch, "seconds between two kernels"},
    {"interference", &Assumptions::interference, "seconds of computing lost for each byte sent meanwhile"},
};

}  // namespace

std::span<const Assumption> all_assumptions() { return kRows; }

Roofline Assumptions::of(const Roofline& ideal) const {
  Roofline r = ideal;
  r.most.flops *= gemms, r.most.floats *= gemms;
  r.most.quantized *= quantized;
  r.most.bytes *= copies;
  r.attention_forward *= attention, r.attention_backward *= attention;
  r.host_bytes *= host;
  return r;
}

Network Assumptions::of(const Network& ideal) const {
  Network n = ideal;
  n.link_bytes *= links, n.network_bytes *= network;
  n.start *= latency, n.hop *= latency;
  return n;
}

void set(Assumptions& assumed, const std::string& text) {
  const size_t equals = text.find('=');
  std::string known;
  for (const Assumption& row : kRows) {
    known += cat(known.empty() ? "" : ", ", row.name);
    if (text.substr(0, equals) != row.name || equals == std::string::npos) continue;
    const std::string value = text.substr(equals + 1);
    double parsed = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
    const bool divides = row.value != &Assumptions::launch && row.value != &Assumptions::interference;
    if (error != std::errc{} || end != value.data() + value.size() || !std::isfinite(parsed) || parsed < 0 ||
        (divides && parsed == 0))
      throw Error(cat("--assume ", text, ": ", row.name, " is a ", row.unit, ", ", divides ? "above 0" : "0 or more",
                      ", not \"", value, "\""),
                  Exit::usage);
    assumed.*row.value = parsed;
    return;
  }
  throw Error(cat("--assume ", text, ": expected name=value with a name of ", known), Exit::usage);
}

Assumptions expected_on(const GpuSpec& gpu) {
  constexpr int kGeForce = 89;  // the only described GPU whose clocks do not drop in LLMQ's steps
  Assumptions a;
  // The only fitted value: data-center GPUs reach their power limit in a long run and lower their clocks. 0.82 has the
  // smallest mean error over the rows of scripts/bench/plan/rows.py that are marked for the fit.
  if (gpu.capability != kGeForce) a.gemms = 0.82;
  // An H100 reaches 1,230 TFLOP/s at 4096 x 4096 x 4096 with tensorwise scaling, where the model's tiling predicts
  // 1,515 [torchao, float8 benchmarks]; assumed for later GPUs, too.
  if (gpu.capability >= 90) a.quantized = 0.81;
  a.launch = 3e-6;  // llm.c's kernels in one stream, without graphs
  // Collectives over NVLink at 360 GB/s slow down computation by 15 %, those over a network of 46 GB/s by 2 % [Isaev et
  // al. 2023, Calculon's defaults]: about the same per byte.
  a.interference = 0.42e-12;
  return a;
}

}  // namespace athanor
