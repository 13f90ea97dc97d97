// athanor bench device: measures this machine's ceilings for the roofline model.
#include <memory>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "command/command.h"
#include "command/machine.h"
#include "train/setup.h"

namespace athanor {
namespace {

struct BenchDeviceArgs {
  std::string device = "auto";
  bool json = false;
};

Exit bench_device(const BenchDeviceArgs& args) {
  Config config;
  config.device = device_of(args.device);
  Machine machine(config);
  const Backend backend = machine.backend();
  const Ceilings half = measure_ceilings(backend, DType::bf16), full = measure_ceilings(backend, DType::f32);
  if (args.json) {
    const nlohmann::ordered_json out = {{"device", machine.description()},
                                        {"gemm_flops", half.flops},
                                        {"gemm_flops_f32", full.flops},
                                        {"copy_bytes", half.bytes},
                                        {"data_sheet_flops", backend.device.peak_flops(DType::bf16)},
                                        {"data_sheet_bytes", backend.device.peak_bytes()}};
    print(out.dump(2), "\n");
  } else {
    print(machine.description(), "\nGEMM of 16-bit matrices ", format_count(half.flops),
          "FLOP/s, of f32 (tf32 on a GPU) ", format_count(full.flops), "FLOP/s; copy ", format_count(half.bytes),
          "B/s\n");
  }
  return Exit::done;
}

}  // namespace

void add_bench_device(Cli& cli, Verb bench) {
  auto args = std::make_shared<BenchDeviceArgs>();
  Verb verb = bench.add_verb("device", "rates of a large GEMM and of a large copy");
  verb.add_option("--device", args->device, "device").check(one_of({"auto", "cpu", "cuda"})).show_default();
  verb.add_flag("--json", args->json, "one JSON object");
  verb.on_chosen([&cli, args] { cli.action = [args] { return bench_device(*args); }; });
}

}  // namespace athanor
