// athanor devices: lists the GPUs, the CPU and NVIDIA's libraries that this program finds, and why a GPU or library is
// not usable.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "command/command.h"
#include "cpu/make_cpu.h"
#include "cuda/libraries/specs.h"
#include "cuda/make_cuda.h"

namespace athanor {
namespace {

struct Found {
  std::vector<GpuReport> gpus = list_gpus();
  std::string why_no_gpu = why_no_cuda();
  CpuBackend cpu = make_cpu({});
  std::vector<LibraryReport> libraries = probe_libraries(search_places(library_specs()));
};

std::string rate(double per_second, const char* unit) {
  return per_second > 0 ? cat(format_count(per_second), unit) : std::string("rate not known");
}

void print_gpus_and_libraries(const Found& found) {
  print("GPUs\n");
  if (found.gpus.empty()) print("  none       ", found.why_no_gpu, "\n");
  for (size_t i = 0; i < found.gpus.size(); ++i) {
    const GpuReport& g = found.gpus[i];
    std::printf("  cuda:%-5zu %s, sm_%d%d, %d multiprocessors, %s, %s bf16, %s; %s\n", i, g.name.c_str(), g.major,
                g.minor, g.multiprocessors, format_bytes(g.memory_bytes).c_str(), rate(g.peak_flops, "FLOP/s").c_str(),
                rate(g.copy_bytes, "B/s").c_str(), g.problem.empty() ? "usable" : g.problem.c_str());
  }
  print("CPU\n  cpu        ", found.cpu.description, "\nLibraries\n");
  for (const LibraryReport& l : found.libraries) {
    if (l.problem.empty())
      std::printf("  %-12s%s  %s\n", l.name.c_str(), l.version == Version{} ? "-" : cat(l.version).c_str(),
                  l.path.c_str());
    else
      std::printf("  %-12snot usable: %s\n", l.name.c_str(), l.problem.c_str());
  }
}

using Json = nlohmann::ordered_json;

std::string to_json(const Found& found) {
  Json gpus = Json::array(), libraries = Json::array();
  for (const GpuReport& g : found.gpus)
    gpus.push_back({{"name", g.name},
                    {"compute_capability", cat(g.major, ".", g.minor)},
                    {"multiprocessors", g.multiprocessors},
                    {"memory_bytes", g.memory_bytes},
                    {"peak_flops_bf16", g.peak_flops},
                    {"memory_bytes_per_second", g.copy_bytes},
                    {"problem", g.problem}});
  for (const LibraryReport& l : found.libraries)
    libraries.push_back({{"name", l.name}, {"version", cat(l.version)}, {"path", l.path}, {"problem", l.problem}});
  return Json{
      {"gpus", gpus}, {"why_no_gpu", found.why_no_gpu}, {"cpu", found.cpu.description}, {"libraries", libraries}}
      .dump(2);
}

}  // namespace

void add_devices(Cli& cli) {
  auto json = std::make_shared<bool>(false);
  Verb verb =
      cli.app.add_verb("devices", "list GPUs, CPU and NVIDIA libraries of this machine, and why any cannot be used");
  verb.add_flag("--json", *json, "one JSON object");
  verb.on_chosen([&cli, json] {
    cli.action = [json] {
      const Found found;
      if (*json)
        print(to_json(found), "\n");
      else
        print_gpus_and_libraries(found);
      return Exit::done;
    };
  });
}

}  // namespace athanor
