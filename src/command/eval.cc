// athanor eval FOLDER: loss, perplexity and bits per byte of a checkpoint on shards, its accuracy on multiple-choice
// questions, and on few-shot tasks.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/format.h"
#include "command/command.h"
#include "command/machine.h"
#include "config/config.h"
#include "convert/gguf_reader.h"
#include "convert/hf_folder.h"
#include "convert/model_folder.h"
#include "infer/eval_tasks.h"
#include "infer/evaluate.h"
#include "infer/multiple_choice.h"
#include "tokenizer/load.h"
#include "tokenizer/token_bytes.h"
#include "train/setup.h"
#include "train/snapshot.h"

namespace athanor {
namespace {

struct EvalArgs {
  std::string checkpoint, choices, scores, tasks, tokenizer, weights = kWeightsAsPrecision;
  std::vector<std::string> data, overrides;
  int64_t samples = 0, max_items = 0;
  bool json = false, averages = false;
};

bool is_there(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// The run's own config; for a folder with only a model, a config that evaluates it in fp32 at its full length.
Config config_of(const EvalArgs& args, const ModelFolder& from) {
  const std::string& folder = from.path();
  const std::string resolved = folder + "/config.resolved.json";
  std::vector<std::string> overrides = args.overrides;
  overrides.push_back("load=none");
  Config config;
  if (is_there(resolved)) {
    config = load_config_logged(resolved, overrides);
    // evaluation runs in a single process
    config.data_parallel_replicate_size = config.tensor_parallel_size = config.context_parallel_size = 1;
    config.pipeline_parallel_size = config.virtual_pipeline_size = config.expert_parallel_size = 1;
    config.pipeline_schedule = PipelineSchedule::one_f_one_b;
    config.pipeline_layout.clear();
    config.sequence_parallel = false;
    config.data_parallel_shard_size = 0;
  } else {
    constexpr const char* kRest =
        R"("train_iters": 1, "global_batch_size": 8, "learning_rate": 1, "precision": "fp32", "train_data": []})";
    const std::string model =
        is_there(folder + "/config.json") ? R"("config.json")" : hf_config_json(from.config(), "float32");
    config = parse_config(cat(R"({"model": )", model, ", ", kRest), folder, folder, overrides);
  }
  if (!args.data.empty() || !args.choices.empty() || !args.tasks.empty()) config.valid_data.clear();
  if (!args.tasks.empty()) config.multiple_choice_data.clear();
  for (const std::string& path : args.data) config.valid_data.push_back({.path = path});
  if (!args.choices.empty()) config.multiple_choice_data = args.choices;
  if (config.valid_data.empty() && config.multiple_choice_data.empty() && args.tasks.empty())
    throw Error(
        "eval: nothing to do: give --data, --choices or --tasks, or valid_data or multiple_choice_data in the config",
        Exit::usage);
  return config;
}

// The tokenizer of --tokenizer, else that of the folder, else the one next to the data; null if there is none.
std::unique_ptr<Tokenizer> tokenizer_of(const EvalArgs& args, const std::string& folder, const Config& config,
                                        const std::optional<Dataset>& data) {
  if (!args.tokenizer.empty()) return make_tokenizer({.source = args.tokenizer});
  if (has_tokenizer(folder)) return load_tokenizer(folder);
  auto found = data ? find_tokenizer(data->first_shard()) : nullptr;
  const std::string& needs = args.tasks.empty() ? config.multiple_choice_data : args.tasks;
  if (!found && !needs.empty())
    throw Error(cat("eval: ", needs, " needs a tokenizer, and ", folder, " has none: give --tokenizer"), Exit::usage);
  return found;
}

void write_scores(const std::string& path, const std::vector<Question>& questions, const ChoiceScores& scores) {
  std::string text;
  for (size_t i = 0; i < questions.size(); ++i) {
    nlohmann::ordered_json line = {{"label", questions[i].label}, {"log_probability", scores[i]}};
    for (const auto& choice : questions[i].choices) line["tokens"].push_back(choice.size());
    line["characters"] = questions[i].characters;
    text += line.dump() + "\n";
  }
  write_file(path, text);
}

// Formats a loss, with its standard error if there is one.
std::string loss_text(double mean, double standard_error) {
  return format_text("loss %.4f", mean) +
         (std::isfinite(standard_error) ? format_text(" +- %.4f", standard_error) : "");
}

void require_finite(const char* what, double loss, const std::string& folder) {
  if (!std::isfinite(loss))
    throw Error(cat("eval: ", what, " of ", folder, " is ", loss, ", expected a finite number: the weights have ",
                    "diverged, or overflow in this precision (try --set precision=fp32)"));
}

void report_images(const EvalResult& r, nlohmann::ordered_json& json, std::string& text) {
  json = {{"loss", r.loss}, {"accuracy", r.accuracy}, {"images", r.windows}, {"images_all", r.windows_all}};
  if (std::isfinite(r.loss_error)) json["loss_error"] = r.loss_error;
  text += format_text("%s, accuracy %.4f, over %lld of %lld images\n", loss_text(r.loss, r.loss_error).c_str(),
                      r.accuracy, static_cast<long long>(r.windows), static_cast<long long>(r.windows_all));
}

void report(const EvalResult& r, const Config& config, nlohmann::ordered_json& json, std::string& text) {
  if (reads_images(config.model)) return report_images(r, json, text);
  const double bits = r.loss / std::log(2.0);
  json = {{"loss", r.loss},     {"perplexity", std::exp(r.loss)}, {"bits_per_token", bits},
          {"tokens", r.tokens}, {"windows", r.windows},           {"windows_all", r.windows_all}};
  if (std::isfinite(r.loss_error)) json["loss_error"] = r.loss_error;
  text += format_text("%s nats per token, perplexity %.3f, %.4f bits per token",
                      loss_text(r.loss, r.loss_error).c_str(), std::exp(r.loss), bits);
  if (r.bytes > 0) {
    json["bits_per_byte"] = r.bits_per_byte();
    json["bytes"] = r.bytes;
    text += format_text(", %.4f bits per byte", r.bits_per_byte());
  }
  text += cat(", over ", r.tokens, " tokens in ",
              r.windows == r.windows_all ? cat("all ", r.windows, " windows\n")
                                         : cat(r.windows, " of the ", r.windows_all, " windows, spread over them\n"));
  for (const SourceLoss& s : r.sources) {
    const std::string& name = source_name(config.valid_data[size_t(s.source)]);
    auto& source = json["sources"].emplace_back(nlohmann::ordered_json{{"name", name},
                                                                       {"loss", s.loss},
                                                                       {"tokens", s.tokens},
                                                                       {"windows", s.windows},
                                                                       {"windows_all", s.windows_all}});
    if (std::isfinite(s.loss_error)) source["loss_error"] = s.loss_error;
    if (std::isfinite(s.bits_per_byte)) source["bits_per_byte"] = s.bits_per_byte;
    text +=
        cat("  ", name, ": ", loss_text(s.loss, s.loss_error), ", ", s.windows, " of ", s.windows_all, " windows\n");
  }
}

void report(const ChoiceResult& r, nlohmann::ordered_json& json, std::string& text) {
  json["choices"] = {{"questions", r.questions},
                     {"accuracy", r.accuracy},
                     {"accuracy_per_token", r.accuracy_per_token},
                     {"accuracy_per_character", r.accuracy_per_character},
                     {"loss", r.loss}};
  text += format_text(
      "%lld questions: accuracy %.4f, by likelihood per token %.4f, per character %.4f; loss of the right "
      "choices %.4f nats per token\n",
      static_cast<long long>(r.questions), r.accuracy, r.accuracy_per_token, r.accuracy_per_character, r.loss);
}

// Language modelling tasks request logits of whole micro-batches, so micro-batches have one sequence.
std::unique_ptr<Engine> engine_for(Config config, const std::vector<EvalTask>& tasks, Backend backend,
                                   InferenceWeights weights) {
  const auto greedy = [](const EvalTask& task) { return task.kind == TaskKind::language_modeling; };
  if (std::none_of(tasks.begin(), tasks.end(), greedy)) return make_engine(config, backend, false, weights);
  config.global_batch_size = config.micro_batch_size = 1;
  EngineOptions options = engine_options(config, false);
  options.weights = weights;
  auto engine = std::make_unique<Engine>(config.model, options, backend);
  engine->want_logits();
  engine->memory().require_fits(memory_capacity(config, backend.device), runtime_reserve(config, backend.device));
  return engine;
}

// Evaluates every task, and the mean of their centred accuracies: the CORE metric.
void report(Engine& engine, const std::vector<EvalTask>& tasks, nlohmann::ordered_json& json, std::string& text) {
  double sum = 0;
  for (const EvalTask& task : tasks) {
    const TaskResult r = evaluate_task(engine, task);
    sum += r.centered;
    json["tasks"].push_back({{"name", task.name},
                             {"few_shot", task.few_shot},
                             {"items", r.items},
                             {"accuracy", r.accuracy},
                             {"centered", r.centered}});
    text +=
        cat(task.name, ", ", task.few_shot,
            "-shot: ", format_text("accuracy %.4f, centred %.4f", r.accuracy, r.centered), ", ", r.items, " items\n");
  }
  json["core"] = sum / double(tasks.size());
  text += format_text("CORE, the mean of %zu centred accuracies: %.4f\n", tasks.size(), sum / double(tasks.size()));
}

Exit eval(const EvalArgs& args) {
  const ModelFolder from(args.checkpoint, args.averages);
  Config config = config_of(args, from);
  if (!args.scores.empty() && config.multiple_choice_data.empty())
    throw Error("eval: --scores writes the scores of multiple-choice questions, and there are none: give --choices",
                Exit::usage);
  Machine machine(config, {}, WithoutLibraries::use_cpu);
  const InferenceWeights weights = inference_weights(args.weights, machine);
  std::optional<Dataset> data;
  if (!config.valid_data.empty()) data = open_dataset(config.valid_data, config);
  const auto tokenizer = tokenizer_of(args, tokenizer_folder(from), config, data);
  std::vector<Question> questions;
  if (!config.multiple_choice_data.empty())
    questions = read_questions(config.multiple_choice_data, *tokenizer,
                               {.seq_length = config.seq_length, .vocab_size = config.model.vocab_size});
  std::vector<EvalTask> tasks;
  if (!args.tasks.empty())
    tasks = read_eval_tasks(
        args.tasks, *tokenizer,
        {.seq_length = config.seq_length, .vocab_size = config.model.vocab_size, .max_items = args.max_items});
  if (!tasks.empty() && config.multiple_choice_data.empty())
    config.multiple_choice_data = args.tasks;  // makes the engine plan for several texts per sequence
  const auto engine = engine_for(config, tasks, machine.backend(), weights);
  engine->commit();
  load_weights(*engine, machine.backend().device, from);
  nlohmann::ordered_json json;
  std::string text;
  if (data) {
    const EvalResult result = evaluate(*engine, *data,
                                       {.samples = args.samples,
                                        .packing = packing_options(config, *data),
                                        .token_bytes = bytes_of_tokens(tokenizer.get(), config.model.vocab_size)});
    if (!result.failure.empty()) throw Error(result.failure);
    require_finite("the loss", result.loss, from.path());
    report(result, config, json, text);
  }
  if (!questions.empty()) {
    const ChoiceScores scores = score(*engine, questions);
    for (const auto& choices : scores)
      for (const double s : choices) require_finite("the log probability of a choice", s, from.path());
    if (!args.scores.empty()) write_scores(args.scores, questions, scores);
    report(grade(questions, scores), json, text);
  }
  if (!tasks.empty()) report(*engine, tasks, json, text);
  print(args.json ? json.dump() + "\n" : text);
  return Exit::done;
}

}  // namespace

void add_eval(Cli& cli) {
  auto args = std::make_shared<EvalArgs>();
  Verb verb =
      cli.app.add_verb("eval", "evaluate a checkpoint: loss on held-out data, multiple-choice questions and tasks");
  verb.add_option("checkpoint", args->checkpoint,
                  "checkpoint, run folder (newest checkpoint), a model's folder with config.json, or a GGUF file")
      .required();
  verb.add_option("--data", args->data, "token shards or patterns; default: valid_data of the run");
  verb.add_option("--samples", args->samples, "maximum number of windows, spread evenly over the data; 0: all")
      .show_default()
      .check(non_negative());
  verb.add_option("--choices", args->choices,
                  "JSON lines of multiple-choice questions: HellaSwag's, or context, choices and label");
  verb.add_option("--scores", args->scores, "file for the log probability of every choice, one line per question");
  verb.add_option("--tasks", args->tasks,
                  "JSON list of few-shot tasks (data/README.md): accuracy of each, and the mean");
  verb.add_option("--max-items", args->max_items, "tasks: evaluate only this many items of each; 0: all")
      .show_default()
      .check(non_negative())
      .needs("--tasks");
  verb.add_option("--tokenizer", args->tokenizer, "tokenizer file or folder; default: the checkpoint's or the data's");
  verb.add_option("--set", args->overrides, "override a key of the run's config: a.b=value (may repeat)").one_value();
  add_weights_option(verb, args->weights);
  verb.add_flag("--average,--ema", args->averages,
                "use the averaged weights (averaging.ema_decay, averaging.tail_start)");
  verb.add_flag("--json", args->json, "print one JSON object");
  verb.on_chosen([&cli, args] { cli.action = [args] { return eval(*args); }; });
}

}  // namespace athanor
