// athanor bench decode CONFIG.json: tokens per second of sampling one text on the CPU, compared with the speed at which
// the same threads read a buffer of the weights' size. That is the bound, because every token reads every weight once.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/format.h"
#include "base/rng.h"
#include "command/command.h"
#include "command/machine.h"
#include "cpu/thread_pool.h"
#include "infer/sampler.h"
#include "perf/timing.h"
#include "train/setup.h"

namespace athanor {
namespace {

struct BenchDecodeArgs {
  std::string config, weights = kWeightsAsPrecision;
  std::vector<std::string> overrides;
  int64_t context = 128, rounds = 15;
  bool json = false;
};

// Reads a whole buffer with many threads at memory bandwidth.
class StreamReader {
 public:
  StreamReader(int64_t bytes, int threads) : pool_(threads), words_(size_t(bytes) / 8) {
    each_chunk([&](uint64_t* begin, uint64_t* end) { std::fill(begin, end, 1); });  // first touch by the threads that
                                                                                    // will read
  }
  double seconds() {
    const auto begin = Clock::now();
    std::atomic<uint64_t> total = 0;
    each_chunk([&](const uint64_t* at, const uint64_t* end) {
      uint64_t sums[16] = {};
      constexpr int64_t kAhead = 2048;  // words: the hardware prefetcher does not cross page boundaries
      for (; at + 16 <= end; at += 16) {
        __builtin_prefetch(at + kAhead);
        __builtin_prefetch(at + kAhead + 8);
        for (int i = 0; i < 16; ++i) sums[i] += at[i];
      }
      for (int i = 1; i < 16; ++i) sums[0] += sums[i];
      for (; at < end; ++at) sums[0] += *at;
      total += sums[0];
    });
    CHECK(total == words_.size(), "read ", total.load(), " of ", words_.size());  // uses the sum, so that the reads are
                                                                                  // not optimized away
    return seconds_since(begin);
  }

 private:
  void each_chunk(const auto& fn) {
    constexpr int64_t kWords = 1 << 17;
    pool_.parallel_ranges(int64_t(words_.size()), kWords,
                          [&](int64_t begin, int64_t end) { fn(words_.data() + begin, words_.data() + end); });
  }
  ThreadPool pool_;
  std::vector<uint64_t> words_;
};

struct DecodeTimes {
  int64_t bytes = 0;                   // size of the weights
  double token_seconds, read_seconds;  // medians
  double share;                        // median over the rounds of read_seconds / token_seconds
};

DecodeTimes measure(const BenchDecodeArgs& args, const Config& config, Machine& machine) {
  const int64_t context = std::min(args.context, config.model.max_position_embeddings);
  Sampler sampler(config.model, make_recipe(name_of(config.precision), DType::f32), machine.backend(), context, 1,
                  inference_weights(args.weights, machine));
  sampler.memory().require_fits(memory_capacity(config, machine.backend().device),
                                runtime_reserve(config, machine.backend().device));
  sampler.commit();
  DecodeTimes m;
  auto random_token = [&, drawn = uint64_t{0}]() mutable {
    return int32_t(random_bits(0, stream_of("bench tokens"), drawn++) % uint64_t(config.model.vocab_size));
  };
  for (const auto& unit : sampler.model().params().units()) {
    Tensor values = unit->value;
    if (values.dtype == DType::f16) values.dtype = DType::bf16;  // any small numbers are fine
    if (unit->stored == StoredAs::values)                        // otherwise the quantized values stay 0, which are as
                                                                 // fast as any
      machine.backend().ops.run(RandomNormal{.x = values, .std = 0.02f}, nullptr);
    m.bytes += int64_t(unit->value.bytes());
  }
  StreamReader reader(m.bytes, machine.threads());
  const int64_t prompt = std::max<int64_t>(1, context / 2), tokens = context - prompt;
  std::vector<int32_t> start;
  for (int64_t i = 0; i < prompt; ++i) start.push_back(random_token());
  std::vector<double> token, read, share;
  // Token and read times alternate, so that a busy machine disturbs both alike.
  for (int64_t round = 0; round < args.rounds; ++round) {
    sampler.prompt(start);
    double token_sum = 0, read_sum = 0;
    for (int64_t i = 0; i < tokens; ++i) {
      const auto begin = Clock::now();
      sampler.next(random_token());
      token_sum += seconds_since(begin);
      read_sum += reader.seconds();
    }
    token.push_back(token_sum / double(tokens));
    read.push_back(read_sum / double(tokens));
    share.push_back(read_sum / token_sum);
  }
  m.token_seconds = median(token);
  m.read_seconds = median(read);
  m.share = median(share);
  return m;
}

Exit bench_decode(const BenchDecodeArgs& args) {
  const Config config = load_config_logged(args.config, args.overrides);
  require_language_model(config.model, "bench decode");
  Machine machine(config);
  if (machine.threads() == 0)
    throw Error("bench decode: measures the CPU backend only; add --set device=cpu", Exit::usage);
  const DecodeTimes m = measure(args, config, machine);
  if (args.json)
    std::printf(
        "{\"tokens_per_second\": %.4f, \"read_tokens_per_second\": %.4f, \"share\": %.4f, \"weight_bytes\": %lld, "
        "\"threads\": %d}\n",
        1 / m.token_seconds, 1 / m.read_seconds, m.share, static_cast<long long>(m.bytes), machine.threads());
  else
    std::printf(
        "%s\n%s of weights in %s; context up to %lld\ndecoding %.2f tokens/s; reading the weights' size %.2f times/s "
        "(%s/s): %.1f %% of what memory allows\n",
        machine.description().c_str(), format_bytes(size_t(m.bytes)).c_str(),
        (args.weights == kWeightsAsPrecision ? std::string(name_of(config.precision)) : args.weights).c_str(),
        static_cast<long long>(args.context), 1 / m.token_seconds, 1 / m.read_seconds,
        format_bytes(size_t(double(m.bytes) / m.read_seconds)).c_str(), 100 * m.share);
  return Exit::done;
}

}  // namespace

void add_bench_decode(Cli& cli, Verb bench) {
  auto args = std::make_shared<BenchDecodeArgs>();
  Verb verb =
      bench.add_verb("decode", "sampling speed in tokens per second, compared with memory bandwidth for the weights");
  verb.add_option("config", args->config, "configuration file").required();
  verb.add_option("--set", args->overrides, "override a key: a.b=value (may repeat)").one_value();
  add_weights_option(verb, args->weights);
  verb.add_option("--context", args->context, "maximum context in tokens; the first half is the prompt")
      .show_default()
      .check(in_range(2, 1 << 20));
  verb.add_option("--rounds", args->rounds, "texts to decode; medians are reported").show_default().check(positive());
  verb.add_flag("--json", args->json, "one JSON object");
  verb.on_chosen([&cli, args] { cli.action = [args] { return bench_decode(*args); }; });
}

}  // namespace athanor
