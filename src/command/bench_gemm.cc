// athanor bench gemm CONFIG.json: times each distinct GEMM of a step in isolation, and compares its rate with that of a
// large GEMM, that of a grouped GEMM also with a dense one.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "command/command.h"
#include "command/machine.h"
#include "ops/gemm_problem.h"
#include "perf/gemm_times.h"
#include "train/setup.h"

namespace athanor {
namespace {

constexpr std::pair<Factors, const char*> kRates[] = {{Factors::quantized, ", in FP8 "},
                                                      {Factors::fp4_values, ", in FP4 "},
                                                      {Factors::floats, ", of dequantized values "}};

struct BenchGemmArgs {
  std::string config;
  std::vector<std::string> overrides;
  std::vector<double> rates;
  bool json = false;
};

struct GemmRow {
  GemmUse use;
  GemmTime time;
  Factors factors = Factors::matrices;
  double share = 0;  // fraction of the rate of a large GEMM with the same kind of operands

  double flops() const { return use.op.cost().flops / time.seconds; }
};

// A kind of GEMM of quantized operands, and whether the device supports it natively.
struct QuantizedPair {
  std::string operands, scales, result;
  bool native = false;
};

// All kinds that recipes use, at 1024 x 1024 x 1024. Empty on the CPU.
std::vector<QuantizedPair> quantized_pairs(const Backend& backend) {
  constexpr int64_t n = 1024;
  struct Scales {
    const char* name;
    DType type;
    Blocks a, b;
  };
  const Scales eight[] = {{"per tensor", DType::f32, {}, {}},
                          {"per row and column", DType::f32, {1, 0}, {1, 0}},
                          {"per 1x128 and 128x128", DType::f32, {1, 128}, {128, 128}},
                          {"per 1x128 and 1x128", DType::f32, {1, 128}, {1, 128}},
                          {"per 1x32, E8M0", DType::f8_e8m0, {1, 32}, {1, 32}}},
               four[] = {{"per 1x16, E4M3", DType::f8_e4m3, {1, 16}, {1, 16}}};
  std::vector<QuantizedPair> pairs;
  const auto add = [&](DType a, DType b, const Scales& s) {
    for (const DType d : {DType::bf16, DType::f32}) {
      const Shape shape = {n, n};
      ScaledGemm op{.gemm = {.d = {nullptr, d, shape},
                             .a = {nullptr, a, shape},
                             .b = {nullptr, b, shape},
                             .tb = true,
                             .accumulate = d == DType::f32},
                    .a_scales = {nullptr, s.type, s.a.grid(shape)},
                    .b_scales = {nullptr, s.type, s.b.grid(shape)},
                    .a_blocks = s.a,
                    .b_blocks = s.b};
      const Factors factors = backend.ops.plan_scaled_gemm(op).factors;
      pairs.push_back({cat(a, " x ", b), s.name, cat(d, op.gemm.accumulate ? ", accumulated" : ""),
                       factors == Factors::quantized || factors == Factors::fp4_values});
    }
  };
  if (backend.device.unified()) return pairs;
  for (const Scales& s : eight)
    for (const DType a : {DType::f8_e4m3, DType::f8_e5m2}) add(a, DType::f8_e4m3, s);
  for (const Scales& s : four) add(DType::f4_e2m1, DType::f4_e2m1, s);
  return pairs;
}

struct GemmReport {
  std::string device;
  std::vector<QuantizedPair> pairs;
  Ceilings most;
  std::vector<GemmRow> rows;
  std::vector<GroupedGemmTime> grouped;

  bool has(Factors factors) const {
    return std::any_of(rows.begin(), rows.end(), [&](const GemmRow& r) { return r.factors == factors; });
  }
  double step_seconds() const {
    double sum = 0;
    for (const GemmRow& r : rows) sum += double(r.use.launches) * r.time.seconds;
    for (const GroupedGemmTime& g : grouped) sum += double(g.launches) * g.seconds;
    return sum;
  }
};

// Counts GEMMs inside fused ops only if the backend runs that op as separate parts; removes rows without launches.
void keep_what_runs(std::vector<GemmRow>& rows) {
  std::map<GemmProblem, int64_t> within;
  for (const GemmRow& row : rows)
    if (row.time.method.in_parts && !row.use.quantized)
      in_parts(row.use.op, [&]<class Part>(const Part& part) {
        if constexpr (std::is_same_v<Part, Gemm>) within[problem_of(part)] += row.use.launches;
      });
  for (GemmRow& row : rows) {
    if (row.use.quantized) continue;
    const auto found = within.find(problem_of(row.use.op));
    row.use.within = found == within.end() ? 0 : found->second;
  }
  std::erase_if(rows, [](const GemmRow& row) { return row.use.launches + row.use.within == 0; });
}

GemmReport measure(const BenchGemmArgs& args) {
  const Config config = load_config_logged(args.config, args.overrides);
  Machine machine(config);
  const Backend backend = machine.backend();
  const auto engine = make_engine(config, backend, true);
  if (backend.tuning) search_gemms(config, *engine, *backend.tuning);
  GemmReport report{.device = machine.description(),
                    .pairs = quantized_pairs(backend),
                    .most = given_or_measured(args.rates, backend, engine->options().recipe),
                    .rows = {},
                    .grouped = time_grouped_gemms(*engine, backend)};
  for (const GemmUse& use : gemms_of_step(*engine))
    report.rows.push_back(
        {.use = use,
         .time = time_gemm(backend, use),
         .factors = use.quantized ? backend.ops.plan_scaled_gemm(*use.quantized).factors : Factors::matrices});
  keep_what_runs(report.rows);
  for (GemmRow& row : report.rows) row.share = row.flops() / report.most.flops_of(row.factors);
  return report;
}

void print_pairs(const std::vector<QuantizedPair>& pairs) {
  if (pairs.empty()) return;
  print("GEMMs of quantized operands that run as they are; others run in fp32 on decoded operands\n");
  for (const QuantizedPair& pair : pairs)
    std::printf("  %-19s %-22s %-17s %s\n", pair.operands.c_str(), pair.scales.c_str(), pair.result.c_str(),
                pair.native ? "yes" : "no");
  print("\n");
}

constexpr const char* kRoles[] = {"forward", "input gradient", "weight gradient"};

std::string words_of(const GroupedGemm& op) {
  return cat(kRoles[size_t(op.role)], " ", op.a.dtype, ", ", op.rows(), " rows, ", op.experts(), " experts of ",
             op.outputs(), " x ", op.inputs(), op.h ? ", with SwiGLU" : "");
}

void print_text(const GemmReport& report) {
  print_pairs(report.pairs);
  std::string of_quantized;
  for (const auto& [factors, words] : kRates)
    if (report.has(factors)) of_quantized += cat(words, format_count(report.most.flops_of(factors)), "FLOP/s");
  std::printf("%s\nrate of a large GEMM %sFLOP/s%s, of a copy %sB/s\n\n%8s %10s %9s %8s %8s  GEMM\n",
              report.device.c_str(), format_count(report.most.flops).c_str(), of_quantized.c_str(),
              format_count(report.most.bytes).c_str(), "launches", "us", "FLOP/s", "of rate", "of time");
  for (const GemmRow& row : report.rows) {
    const double time = double(row.use.launches) * row.time.seconds;
    std::printf("%8lld %10.1f %9s %7.1f%% %7.1f%%", static_cast<long long>(row.use.launches), 1e6 * row.time.seconds,
                format_count(row.flops()).c_str(), 100 * row.share, 100 * time / report.step_seconds());
    print("  ", words_of(row.use), "\n");
    const GemmMethod& method = row.time.method;
    std::printf("%54s%s%s%s\n", "", method.in_parts ? "in parts; " : "", method.words.c_str(),
                row.use.launches == 0 ? cat("; ", row.use.within, " times within a GEMM in parts").c_str() : "");
  }
  if (!report.grouped.empty())
    std::printf("\ngrouped GEMMs, with even rows for all experts\n%8s %10s %9s %8s %8s %8s  GEMM\n", "launches", "us",
                "FLOP/s", "of rate", "of dense", "of time");
  for (const GroupedGemmTime& g : report.grouped) {
    const double flops = g.op.cost().flops / g.seconds;
    std::printf("%8lld %10.1f %9s %7.1f%% %7.1f%% %7.1f%%  %s\n", static_cast<long long>(g.launches), 1e6 * g.seconds,
                format_count(flops).c_str(), 100 * flops / report.most.flops, 100 * g.dense_seconds / g.seconds,
                100 * double(g.launches) * g.seconds / report.step_seconds(), words_of(g.op).c_str());
  }
  std::printf("\nGEMMs of a step: %.4g ms\n", 1e3 * report.step_seconds());
}

using Json = nlohmann::ordered_json;

Json row_json(const GemmRow& row) {
  const Gemm& op = row.use.op;
  constexpr const char* kNames[] = {"matrices", "quantized", "floats", "fp4_values"};
  return {{"gemm", words_of(row.use)},
          {"factors", kNames[size_t(row.factors)]},
          {"shape", {op.m(), op.n(), op.k()}},
          {"launches", row.use.launches},
          {"within", row.use.within},
          {"recompute", row.use.recompute},
          {"us", 1e6 * row.time.seconds},
          {"flops", row.flops()},
          {"of_rate", row.share},
          {"method", {{"words", row.time.method.words}, {"in_parts", row.time.method.in_parts}}}};
}

void print_json(const GemmReport& report) {
  Json out = {{"device", report.device},
              {"rates",
               {{"flops", report.most.flops},
                {"bytes", report.most.bytes},
                {"quantized", report.most.flops_of(Factors::quantized)},
                {"floats", report.most.flops_of(Factors::floats)}}},
              {"step_ms", 1e3 * report.step_seconds()},
              {"quantized_pairs", Json::array()},
              {"gemms", Json::array()},
              {"grouped_gemms", Json::array()}};
  for (const QuantizedPair& pair : report.pairs)
    out["quantized_pairs"].push_back(
        {{"operands", pair.operands}, {"scales", pair.scales}, {"result", pair.result}, {"native", pair.native}});
  for (const GemmRow& row : report.rows) out["gemms"].push_back(row_json(row));
  for (const GroupedGemmTime& g : report.grouped)
    out["grouped_gemms"].push_back({{"gemm", words_of(g.op)},
                                    {"role", kRoles[size_t(g.op.role)]},
                                    {"rows", g.op.rows()},
                                    {"experts", g.op.experts()},
                                    {"matrix", {g.op.outputs(), g.op.inputs()}},
                                    {"launches", g.launches},
                                    {"us", 1e6 * g.seconds},
                                    {"dense_us", 1e6 * g.dense_seconds},
                                    {"flops", g.op.cost().flops / g.seconds},
                                    {"of_rate", g.op.cost().flops / g.seconds / report.most.flops}});
  print(out.dump(), "\n");
}

Exit bench_gemm(const BenchGemmArgs& args) {
  const GemmReport report = measure(args);
  args.json ? print_json(report) : print_text(report);
  return Exit::done;
}

}  // namespace

void add_bench_gemm(Cli& cli, Verb bench) {
  auto args = std::make_shared<BenchGemmArgs>();
  Verb verb = bench.add_verb("gemm", "every GEMM of a step: its time, rate and algorithm");
  verb.add_option("config", args->config, "configuration file").required();
  verb.add_option("--set", args->overrides, "override a key: a.b=value (may repeat)").one_value();
  add_rates(verb, args->rates);
  verb.add_flag("--json", args->json, "one JSON object");
  verb.on_chosen([&cli, args] { cli.action = [args] { return bench_gemm(*args); }; });
}

}  // namespace athanor
