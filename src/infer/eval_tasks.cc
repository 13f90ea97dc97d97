#include "infer/eval_tasks.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/lines.h"
#include "base/rng.h"

namespace athanor {
namespace {

constexpr int64_t kMaxList = 1 << 20, kMaxItems = int64_t{1} << 30, kMaxItem = int64_t{1} << 24;  // bytes
constexpr size_t kMaxOptions = 256;
constexpr int64_t kMaxFewShot = 100;

[[noreturn]] void refuse_task(const std::string& what) { throw Error(what, Exit::usage); }

const nlohmann::json& member(const nlohmann::json& json, const char* key) {
  if (!json.contains(key)) refuse_task(cat("expected a member \"", key, "\""));
  return json.at(key);
}

std::string text_member(const nlohmann::json& json, const char* key) {
  const nlohmann::json& value = member(json, key);
  if (!value.is_string()) refuse_task(cat(key, ": expected a text, got ", value.dump().substr(0, 40)));
  return value.get<std::string>();
}

std::vector<std::string> texts_member(const nlohmann::json& json, const char* key) {
  const nlohmann::json& list = member(json, key);
  if (!list.is_array() || list.size() < 2 || list.size() > kMaxOptions)
    refuse_task(cat(key, ": expected a list of 2 to ", kMaxOptions, " texts"));
  std::vector<std::string> texts;
  for (const nlohmann::json& text : list) {
    if (!text.is_string()) refuse_task(cat(key, ": expected texts, got ", text.dump().substr(0, 40)));
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

// Texts of an item, from which its prompts are made.
struct RawItem {
  std::vector<std::string> contexts, continuations;  // one of the two has an entry per option, the other has one entry
  size_t gold = 0;
  std::string where;  // file and line

  size_t options() const { return std::max(contexts.size(), continuations.size()); }
  const std::string& context(size_t option) const { return contexts[contexts.size() > 1 ? option : 0]; }
  const std::string& continuation(size_t option) const { return continuations[continuations.size() > 1 ? option : 0]; }
};

constexpr const char* kSpace = " \t\n\r\v\f";

std::string trimmed_end(const std::string& text) { return text.substr(0, text.find_last_not_of(kSpace) + 1); }

std::string trimmed(const std::string& text) {
  return trimmed_end(text.substr(std::min(text.size(), text.find_first_not_of(kSpace))));
}

RawItem raw_item(const std::string& line, TaskKind kind) {
  if (int64_t(line.size()) > kMaxItem) refuse_task(cat("has ", line.size(), " bytes, expected at most ", kMaxItem));
  if (!json_depth_within(line)) refuse_task(cat("JSON nested deeper than ", kMostJsonDepth, " levels"));
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) refuse_task("expected a JSON object");
  RawItem item;
  if (kind == TaskKind::language_modeling) {
    item.contexts = {trimmed(text_member(json, "context"))};
    item.continuations = {text_member(json, "continuation")};
    return item;
  }
  const bool choice = kind == TaskKind::multiple_choice;
  item.contexts = choice ? std::vector{text_member(json, "query")} : texts_member(json, "context_options");
  item.continuations = choice ? texts_member(json, "choices") : std::vector{text_member(json, "continuation")};
  const nlohmann::json& gold = member(json, "gold");
  if (!gold.is_number_integer() || gold.get<int64_t>() < 0 || gold.get<int64_t>() >= int64_t(item.options()))
    refuse_task(cat("gold: expected the number of the right option, 0 to ", item.options() - 1, ", got ",
                    gold.dump().substr(0, 40)));
  item.gold = gold.get<size_t>();
  return item;
}

std::vector<RawItem> raw_items(const std::string& path, TaskKind kind) {
  const std::string text = read_file(path, kMaxItems);
  std::vector<RawItem> items;
  for_each_nonblank_line(text, [&](const std::string& line, int64_t number) {
    const std::string where = cat(path, ": line ", number);
    with_context(where, [&] { items.push_back(raw_item(line, kind)); });
    items.back().where = where;
  });
  if (items.empty()) refuse_task(cat(path, ": holds no item"));
  return items;
}

// Chooses `count` items other than `index`, as a pure function of the task's name, `index` and the number of items.
std::vector<size_t> examples_of(size_t index, size_t items, int64_t count, uint64_t stream) {
  std::vector<size_t> chosen;
  for (uint64_t draw = 0; int64_t(chosen.size()) < count; ++draw) {
    const auto bits = philox(stream, uint64_t(index), draw);
    const size_t other = (uint64_t(bits[0]) << 32 | bits[1]) % items;
    if (other != index && std::find(chosen.begin(), chosen.end(), other) == chosen.end()) chosen.push_back(other);
  }
  return chosen;
}

struct TaskFormat {
  TaskKind kind;
  std::string delimiter;
};

// Converts items to tokens of prompts and marks the tokens to score.
class PromptMaker {
 public:
  PromptMaker(const Tokenizer& tokenizer, const TaskFormat& format, const TaskLimits& limits)
      : tokenizer_(tokenizer), format_(format), limits_(limits) {}

  TaskItem make(const RawItem& item, const std::string& examples) const {
    TaskItem made{.options = {}, .gold = int64_t(item.gold)};
    std::vector<std::vector<int32_t>> texts;
    for (size_t o = 0; o < item.options(); ++o)
      texts.push_back(encode(examples + item.context(o) + format_.delimiter + item.continuation(o)));
    if (format_.kind == TaskKind::language_modeling)  // a space before the continuation is part of its first token
      texts.push_back(encode(trimmed_end(examples + item.context(0) + format_.delimiter)));
    const bool schema = format_.kind == TaskKind::schema;
    const size_t common = schema ? common_end(texts) : common_start(texts);
    for (size_t o = 0; o < item.options(); ++o) {
      // The first token, which ends a document, is never scored.
      const auto scored = int64_t(std::min(schema ? common : texts[o].size() - common, texts[o].size() - 1));
      if (scored < 1) refuse_task(cat("option ", o, " has no token of its own"));
      if (scored > limits_.seq_length)
        refuse_task(
            cat("option ", o, " has ", scored, " tokens to score, more than the sequence length ", limits_.seq_length));
      made.options.push_back({std::move(texts[o]), scored});
    }
    return made;
  }

 private:
  // Prepends the end-of-document token, as if the text followed another one.
  std::vector<int32_t> encode(const std::string& text) const {
    std::vector<int32_t> ids = {tokenizer_.eod_id()};
    const std::vector<int32_t> rest = tokenizer_.encode(text);
    ids.insert(ids.end(), rest.begin(), rest.end());
    for (const int32_t id : ids)
      if (id >= limits_.vocab_size)
        refuse_task(cat("token ", id, " is not below the model's vocabulary of ", limits_.vocab_size,
                        ": this is another model's tokenizer"));
    return ids;
  }
  static size_t common_start(const std::vector<std::vector<int32_t>>& texts) {
    size_t common = texts[0].size();
    for (const auto& text : texts)
      common = size_t(
          std::mismatch(texts[0].begin(), texts[0].begin() + std::ptrdiff_t(common), text.begin(), text.end()).first -
          texts[0].begin());
    return common;
  }
  static size_t common_end(const std::vector<std::vector<int32_t>>& texts) {
    size_t common = texts[0].size();
    for (const auto& text : texts)
      common = size_t(
          std::mismatch(texts[0].rbegin(), texts[0].rbegin() + std::ptrdiff_t(common), text.rbegin(), text.rend())
              .first -
          texts[0].rbegin());
    return common;
  }

  const Tokenizer& tokenizer_;
  const TaskFormat& format_;
  const TaskLimits& limits_;
};

TaskKind kind_of(const std::string& name) {
  if (name == "multiple_choice") return TaskKind::multiple_choice;
  if (name == "schema") return TaskKind::schema;
  if (name == "language_modeling") return TaskKind::language_modeling;
  refuse_task(
      cat("icl_task_type: expected multiple_choice, schema or language_modeling, got \"", name.substr(0, 40), "\""));
}

int64_t few_shot_of(const nlohmann::json& json) {
  if (!json.contains("num_fewshot")) return 0;
  nlohmann::json value = json.at("num_fewshot");
  if (value.is_array() && value.size() == 1) value = nlohmann::json(value[0]);  // as in DCLM's lists
  if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > kMaxFewShot)
    refuse_task(cat("num_fewshot: expected 0 to ", kMaxFewShot, ", got ", value.dump().substr(0, 40)));
  return value.get<int64_t>();
}

double baseline_of(const nlohmann::json& json) {
  if (!json.contains("random_baseline")) return 0;
  const nlohmann::json& value = json.at("random_baseline");
  if (!value.is_number() || !(value.get<double>() >= 0) || !(value.get<double>() < 100))
    refuse_task(cat("random_baseline: expected the accuracy of guessing in percent, got ", value.dump().substr(0, 40)));
  return value.get<double>() / 100;
}

EvalTask task_of(const nlohmann::json& json, const std::string& folder, const Tokenizer& tokenizer,
                 const TaskLimits& limits) {
  if (!json.is_object()) refuse_task("expected an object");
  const std::set<std::string> known = {"label",           "icl_task_type",          "dataset_uri",   "num_fewshot",
                                       "random_baseline", "continuation_delimiter", "has_categories"};
  for (const auto& [key, value] : json.items())
    if (!known.contains(key)) refuse_task(cat("unknown member \"", key.substr(0, 40), "\""));
  EvalTask task{.name = text_member(json, "label"), .kind = kind_of(text_member(json, "icl_task_type"))};
  task.few_shot = few_shot_of(json);
  task.random_baseline = baseline_of(json);
  const std::string data = text_member(json, "dataset_uri");
  const TaskFormat format{task.kind, json.contains("continuation_delimiter")
                                         ? text_member(json, "continuation_delimiter")
                                         : std::string(" ")};
  const std::vector<RawItem> raw = raw_items(data.starts_with('/') ? data : cat(folder, "/", data), task.kind);
  if (int64_t(raw.size()) <= task.few_shot)
    refuse_task(
        cat("num_fewshot: ", task.few_shot, " examples of ", raw.size(), " items, expected more items than that"));
  const PromptMaker maker(tokenizer, format, limits);
  const size_t count = limits.max_items > 0 ? std::min(raw.size(), size_t(limits.max_items)) : raw.size();
  for (size_t i = 0; i < count; ++i) {
    std::string examples;
    for (const size_t e : examples_of(i, raw.size(), task.few_shot, stream_of(task.name)))
      examples += raw[e].context(raw[e].gold) + format.delimiter + raw[e].continuation(raw[e].gold) + "\n\n";
    with_context(raw[i].where, [&] { task.items.push_back(maker.make(raw[i], examples)); });
  }
  return task;
}

}  // namespace

std::vector<EvalTask> read_eval_tasks(const std::string& path, const Tokenizer& tokenizer, const TaskLimits& limits) {
  const std::string text = read_file(path, kMaxList);
  return with_context(path, [&] {
    if (!json_depth_within(text)) refuse_task(cat("JSON nested deeper than ", kMostJsonDepth, " levels"));
    const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
    if (!json.is_object() || !json.contains("icl_tasks") || !json.at("icl_tasks").is_array())
      refuse_task("expected a JSON object with a list \"icl_tasks\"");
    std::vector<EvalTask> tasks;
    for (const nlohmann::json& task : json.at("icl_tasks"))
      with_context(cat("task ", tasks.size()),
                   [&] { tasks.push_back(task_of(task, parent_dir(path), tokenizer, limits)); });
    if (tasks.empty()) refuse_task("icl_tasks: holds no task");
    return tasks;
  });
}

TaskResult evaluate_task(Engine& engine, const EvalTask& task, Communicator* control) {
  std::vector<ScoredText> texts;
  for (const TaskItem& item : task.items) texts.insert(texts.end(), item.options.begin(), item.options.end());
  const bool greedy = task.kind == TaskKind::language_modeling;
  const std::vector<TextScore> scores = score_texts(engine, texts, {.misses = greedy, .stop = {}, .control = control});
  TaskResult result{.items = int64_t(task.items.size())};
  size_t at = 0;
  int64_t right = 0;
  for (const TaskItem& item : task.items) {
    size_t best = 0;
    double largest = -HUGE_VAL;
    for (size_t o = 0; o < item.options.size(); ++o, ++at) {
      const double per_token = scores[at].log_probability / double(texts[at].scored);
      if (!std::isfinite(per_token))
        throw Error(
            cat("task ", task.name, ": a log probability is ", per_token,
                ", expected a finite number: the weights have diverged, or overflow in this precision (try fp32)"));
      if (per_token > largest) best = o, largest = per_token;
      right += greedy && scores[at].misses == 0;
    }
    right += !greedy && int64_t(best) == item.gold;
  }
  result.accuracy = double(right) / double(result.items);
  result.centered = (result.accuracy - task.random_baseline) / (1 - task.random_baseline);
  return result;
}

}  // namespace athanor
