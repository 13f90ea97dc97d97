// athanor bench products CONFIG.json: every different matrix product of a step by itself, beside the rate of a large
// one and, with --exhaustive, beside the fastest that a search of the whole library finds.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/log.h"
#include "command/command.h"
#include "command/machine.h"
#include "metrics/format.h"
#include "ops/gemm_problem.h"
#include "perf/product_reason.h"
#include "perf/product_times.h"
#include "train/setup.h"

namespace athanor {
namespace {

constexpr std::pair<Factors, const char*> kRates[] = {{Factors::codes, ", of codes "},
                                                      {Factors::codes_of_4_bits, ", of codes of 4 bits "},
                                                      {Factors::floats, ", of codes as f32 "}};
constexpr double kNearBest = 0.97;  // of the best of an exhaustive search: the goal

struct BenchProductsArgs {
  std::string config;
  std::vector<std::string> overrides;
  std::vector<double> rates;
  double seconds = 10;
  bool exhaustive = false, json = false;
};

struct ProductRow {
  ProductUse use;
  ProductTime time;
  Factors factors = Factors::matrices;
  double share = 0;    // of the rate of a large product of such factors
  std::string reason;  // below kFastEnough
  std::optional<ProductTrial> trial;
  std::string failure;  // of the exhaustive search

  double flops() const { return use.op.cost().flops / time.seconds; }
  double of_best() const { return trial ? trial->best.seconds / trial->chosen.seconds : 1; }
};

struct ProductReport {
  std::string device;
  Roofline limits;
  std::vector<ProductRow> rows;
  bool exhaustive = false;

  auto below_best() const {
    return std::count_if(rows.begin(), rows.end(), [](const ProductRow& r) { return r.of_best() < kNearBest; });
  }
  auto searched() const {
    return std::count_if(rows.begin(), rows.end(), [](const ProductRow& r) { return r.trial.has_value(); });
  }
  bool has(Factors factors) const {
    return std::any_of(rows.begin(), rows.end(), [&](const ProductRow& r) { return r.factors == factors; });
  }
  double step_seconds() const {
    double sum = 0;
    for (const ProductRow& r : rows) sum += double(r.use.launches) * r.time.seconds;
    return sum;
  }
};

std::string reason_of(const ProductRow& row, const Roofline& limits) {
  const Gemm& op = row.use.op;
  const ProductMethod& method = row.time.method;
  return why_slow(
      {.m = double(op.m()),
       .n = double(op.n()),
       .k = double(op.k()),
       .cost = row.use.cost(),
       .seconds = row.time.seconds,
       .epilogue_seconds = row.time.seconds - row.time.product_seconds,
       .epilogue_bytes = method.in_parts ? 0 : op.epilogue_bytes(),
       .codes = row.use.codes.has_value(),
       .tiling = {.rows = double(method.tile_rows), .cols = double(method.tile_cols), .cuts = double(method.cuts)}},
      limits.of(row.factors));
}

// Of products within epilogues only those that are done in parts run as such.
void keep_what_runs(std::vector<ProductRow>& rows) {
  std::map<GemmProblem, int64_t> within;
  for (const ProductRow& row : rows)
    if (row.time.method.in_parts && !row.use.codes)
      in_parts(row.use.op, [&]<class Part>(const Part& part) {
        if constexpr (std::is_same_v<Part, Gemm>) within[problem_of(part)] += row.use.launches;
      });
  for (ProductRow& row : rows) {
    if (row.use.codes) continue;
    const auto found = within.find(problem_of(row.use.op));
    row.use.within = found == within.end() ? 0 : found->second;
  }
  std::erase_if(rows, [](const ProductRow& row) { return row.use.launches + row.use.within == 0; });
}

void search_all(Tuning& tuning, double seconds, std::vector<ProductRow>& rows) {
  for (ProductRow& row : rows) {
    try {
      row.trial = row.use.codes ? tuning.try_all(*row.use.codes, seconds)
                                : tuning.try_all(row.use.op, row.use.recompute, seconds);
    } catch (const Error& error) {
      row.failure = error.what();
      log::warn("bench products: ", row.failure);
    }
  }
}

ProductReport measure(const BenchProductsArgs& args) {
  const Config config = load_config_logged(args.config, args.overrides);
  Machine machine(config);
  const Backend backend = machine.backend();
  if (args.exhaustive && !backend.tuning)
    throw Error("bench products: --exhaustive needs a GPU: the CPU backend has one algorithm", Exit::usage);
  const auto engine = make_engine(config, backend, true);
  if (backend.tuning) search_products(config, *engine, *backend.tuning);
  ProductReport report{.device = machine.description(), .limits = {}, .rows = {}, .exhaustive = args.exhaustive};
  report.limits.most = given_or_measured(args.rates, backend, engine->options().recipe);
  report.limits.multiprocessors = backend.device.multiprocessors();
  for (const ProductUse& use : products_of_step(*engine))
    report.rows.push_back({.use = use,
                           .time = time_product(backend, use),
                           .factors = use.codes ? backend.ops.code_product(*use.codes).factors : Factors::matrices,
                           .trial = {}});
  keep_what_runs(report.rows);
  for (ProductRow& row : report.rows) {
    row.share = row.flops() / report.limits.most.flops_of(row.factors);
    if (row.share < kFastEnough) row.reason = reason_of(row, report.limits);
  }
  if (args.exhaustive) search_all(*backend.tuning, args.seconds, report.rows);
  return report;
}

void print_text(const ProductReport& report) {
  std::string of_codes;
  for (const auto& [factors, words] : kRates)
    if (report.has(factors)) of_codes += cat(words, format_count(report.limits.most.flops_of(factors)), "FLOP/s");
  std::printf("%s\nrate of a large product %sFLOP/s%s, of a copy %sB/s\n\n%8s %10s %9s %8s %8s%s  product\n",
              report.device.c_str(), format_count(report.limits.most.flops).c_str(), of_codes.c_str(),
              format_count(report.limits.most.bytes).c_str(), "launches", "us", "FLOP/s", "of rate", "of time",
              report.exhaustive ? "  of best" : "");
  for (const ProductRow& row : report.rows) {
    const double time = double(row.use.launches) * row.time.seconds;
    std::printf("%8lld %10.1f %9s %7.1f%% %7.1f%%", static_cast<long long>(row.use.launches), 1e6 * row.time.seconds,
                format_count(row.flops()).c_str(), 100 * row.share, 100 * time / report.step_seconds());
    if (report.exhaustive) row.trial ? std::printf(" %7.1f%%", 100 * row.of_best()) : std::printf(" %8s", "-");
    std::printf("  %s\n", words_of(row.use).c_str());
    const ProductMethod& method = row.time.method;
    std::printf("%54s%s%s%s\n", "", method.in_parts ? "in parts; " : "", method.words.c_str(),
                row.use.launches == 0 ? cat("; ", row.use.within, " times within a product in parts").c_str() : "");
    if (!row.reason.empty()) std::printf("%54s%s\n", "", row.reason.c_str());
    if (row.trial && row.of_best() < 1)
      std::printf("%54sbest: %.1f us by %s\n", "", 1e6 * row.trial->best.seconds, row.trial->best.method.words.c_str());
    if (row.trial)
      std::printf("%54s%lld ways tried%s, %lld failed\n", "", static_cast<long long>(row.trial->tried),
                  row.trial->complete ? "" : ", not all: time ran out", static_cast<long long>(row.trial->failed));
  }
  std::printf("\nproducts of a step: %.4g ms\n", 1e3 * report.step_seconds());
  if (report.exhaustive)
    std::printf("below %.0f %% of the best that was found: %lld of %lld products\n", 100 * kNearBest,
                static_cast<long long>(report.below_best()), static_cast<long long>(report.searched()));
}

using Json = nlohmann::ordered_json;

Json method_json(const ProductMethod& method) {
  Json out = {{"words", method.words}, {"in_parts", method.in_parts}, {"cuts", method.cuts}};
  if (method.tile_rows > 0) out["tile"] = {method.tile_rows, method.tile_cols};
  if (method.waves > 0) out["waves"] = method.waves;
  return out;
}

Json row_json(const ProductRow& row) {
  const Gemm& op = row.use.op;
  constexpr const char* kNames[] = {"matrices", "codes", "floats", "codes_of_4_bits"};
  Json out = {{"product", words_of(row.use)},
              {"factors", kNames[size_t(row.factors)]},
              {"shape", {op.m(), op.n(), op.k()}},
              {"launches", row.use.launches},
              {"within", row.use.within},
              {"recompute", row.use.recompute},
              {"us", 1e6 * row.time.seconds},
              {"flops", row.flops()},
              {"of_rate", row.share},
              {"method", method_json(row.time.method)}};
  if (!row.reason.empty()) out["reason"] = row.reason;
  if (row.trial)
    out["exhaustive"] = {{"of_best", row.of_best()},
                         {"chosen_us", 1e6 * row.trial->chosen.seconds},
                         {"best_us", 1e6 * row.trial->best.seconds},
                         {"best", method_json(row.trial->best.method)},
                         {"tried", row.trial->tried},
                         {"failed", row.trial->failed},
                         {"complete", row.trial->complete}};
  else if (!row.failure.empty())
    out["exhaustive"] = {{"error", row.failure}};
  return out;
}

void print_json(const ProductReport& report) {
  Json out = {{"device", report.device},
              {"rates",
               {{"flops", report.limits.most.flops},
                {"bytes", report.limits.most.bytes},
                {"codes", report.limits.most.flops_of(Factors::codes)},
                {"floats", report.limits.most.flops_of(Factors::floats)}}},
              {"multiprocessors", report.limits.multiprocessors},
              {"step_ms", 1e3 * report.step_seconds()},
              {"products", Json::array()}};
  for (const ProductRow& row : report.rows) out["products"].push_back(row_json(row));
  if (report.exhaustive) {
    out["searched"] = report.searched();
    out["below_best"] = report.below_best();
  }
  std::printf("%s\n", out.dump().c_str());
}

Exit bench_products(const BenchProductsArgs& args) {
  const ProductReport report = measure(args);
  args.json ? print_json(report) : print_text(report);
  return Exit::done;
}

}  // namespace

void add_bench_products(Cli& cli, Verb bench) {
  auto args = std::make_shared<BenchProductsArgs>();
  Verb verb = bench.add_verb("products", "every matrix product of a step: its rate, and why it is not higher");
  verb.add_option("config", args->config, "configuration file").required();
  verb.add_option("--set", args->overrides, "override a key: a.b=value (may repeat)").one_value();
  Option exhaustive = verb.add_flag("--exhaustive", args->exhaustive,
                                    "also time all configurations of cuBLASLt, and report what the best one gains");
  verb.add_option("--seconds", args->seconds, "time limit of that for each product")
      .show_default()
      .check(in_range(0.0, 3600.0))
      .needs(exhaustive);
  add_rates(verb, args->rates);
  verb.add_flag("--json", args->json, "one JSON object");
  verb.on_chosen([&cli, args] { cli.action = [args] { return bench_products(*args); }; });
}

}  // namespace athanor
