// athanor bench comm: bandwidth of every collective between the ranks of a job, by size.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "command/command.h"
#include "command/machine.h"
#include "perf/timing.h"

namespace athanor {
namespace {

struct BenchCommArgs {
  int64_t least = 1 << 10, most = 16 << 20;  // bytes
  double seconds = 0.2;                      // time of each measurement
  bool json = false;
};

struct CommRow {
  const char* collective;
  int64_t bytes;  // size of the whole tensor, on every rank
  double seconds, bus;
};

// A collective on f32 buffers of n elements, of which each rank owns n / ranks, and the fraction of the bytes that
// crosses the busiest link of a perfect network. It is nccl-tests' bus bandwidth factor, which makes results comparable
// across rank counts.
struct CommCase {
  const char* name;
  std::function<void(Communicator&, Tensor full, Tensor part)> run;
  double (*share)(double ranks);
};

const CommCase kCommCases[] = {
    {"all_reduce", [](Communicator& c, Tensor x, Tensor) { c.all_reduce(x, Reduce::sum, Stream::compute); },
     [](double n) { return 2 * (n - 1) / n; }},
    {"all_gather", [](Communicator& c, Tensor x, Tensor part) { c.all_gather(x, part, Stream::compute); },
     [](double n) { return (n - 1) / n; }},
    {"reduce_scatter",
     [](Communicator& c, Tensor x, Tensor part) { c.reduce_scatter(part, x, Reduce::sum, Stream::compute); },
     [](double n) { return (n - 1) / n; }},
    {"broadcast", [](Communicator& c, Tensor x, Tensor) { c.broadcast(x, 0, Stream::compute); },
     [](double) { return 1.0; }},
};

double timed(Communicator& c, const CommCase& which, Tensor full, Tensor part, int64_t calls) {
  c.barrier();
  const auto begin = Clock::now();
  for (int64_t i = 0; i < calls; ++i) which.run(c, full, part);
  double seconds = seconds_since(begin) / double(calls);
  c.all_reduce({&seconds, DType::f64, {1}}, Reduce::max, Stream::compute);  // all ranks use the time of the slowest
  return seconds;
}

CommRow measure(Communicator& c, const CommCase& which, int64_t bytes, double budget) {
  const int64_t part = std::max<int64_t>(1, bytes / 4 / c.size()), n = part * c.size();
  std::vector<float> full(size_t(n), 1.0f / float(c.size())), own(static_cast<size_t>(part));
  const Tensor x{full.data(), DType::f32, {n}}, y{own.data(), DType::f32, {part}};
  const double once = timed(c, which, x, y, 2);
  const auto calls = int64_t(std::clamp(budget / once, 1.0, 1000.0));
  const double seconds = timed(c, which, x, y, calls);
  return {which.name, n * 4, seconds, double(n * 4) / seconds * which.share(c.size())};
}

void print_rows(const std::vector<CommRow>& rows, const BenchCommArgs& args, int ranks) {
  if (args.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const CommRow& r : rows)
      list.push_back(
          {{"collective", r.collective}, {"bytes", r.bytes}, {"seconds", r.seconds}, {"bus_bytes_per_second", r.bus}});
    const nlohmann::ordered_json j = {{"ranks", ranks}, {"rows", list}};
    print(j.dump(), "\n");
    return;
  }
  std::printf("%d ranks\n%-16s %12s %12s %14s\n", ranks, "collective", "size", "time (us)", "bus bandwidth");
  for (const CommRow& r : rows)
    std::printf("%-16s %12s %12.1f %12sB/s\n", r.collective, format_bytes(uint64_t(r.bytes)).c_str(), r.seconds * 1e6,
                format_count(r.bus).c_str());
}

Exit bench_comm(const BenchCommArgs& args, const RankFlags& flags) {
  const RankInfo ranks = find_ranks(flags, process_environment());
  if (ranks.world == 1)
    throw Error(
        "bench comm: expected several ranks, got one; start them with `athanor launch --ranks N bench comm`, mpirun or "
        "srun",
        Exit::usage);
  Config config;
  config.device = DeviceChoice::cpu;
  log::configure({.level = ranks.rank == 0 ? log::Level::info : log::Level::warn, .rank = ranks.rank});
  Machine machine(config, ranks);
  machine.run([&] {
    const auto group = machine.backend().control->split(0, ranks.rank);  // communicator for tensors
    Communicator& c = *group;
    std::vector<CommRow> rows;
    for (const CommCase& which : kCommCases)
      for (int64_t bytes = args.least; bytes <= args.most; bytes *= 4)
        rows.push_back(measure(c, which, bytes, args.seconds));
    if (ranks.rank == 0) print_rows(rows, args, ranks.world);
    std::fflush(stdout);
    c.barrier();
  });
  return Exit::done;
}

}  // namespace

void add_bench_comm(Cli& cli, Verb bench) {
  auto args = std::make_shared<BenchCommArgs>();
  Verb verb = bench.add_verb("comm", "bus bandwidth of collectives: launch --ranks 4 bench comm");
  verb.add_option("--min-bytes", args->least, "smallest tensor").show_default().check(in_range(4.0, 1e12));
  verb.add_option("--max-bytes", args->most, "largest tensor; sizes grow by a factor of four")
      .show_default()
      .check(in_range(4.0, 1e12));
  verb.add_option("--seconds", args->seconds, "time for each measurement").show_default().check(positive());
  verb.add_flag("--json", args->json, "one JSON object");
  verb.on_chosen([&cli, args] { cli.action = [args] { return bench_comm(*args, {}); }; });
}

}  // namespace athanor
