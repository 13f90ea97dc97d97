#include "data/questions.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/lines.h"

namespace athanor {
namespace {

constexpr int64_t kMaxFile = int64_t{1} << 30, kMaxLine = int64_t{1} << 24;  // bytes
constexpr size_t kMaxChoices = 256;

[[noreturn]] void refuse_question(const std::string& what) { throw Error(what, Exit::usage); }

std::string text_of(const nlohmann::json& json, const char* key) {
  if (!json.contains(key) || !json.at(key).is_string()) refuse_question(cat("expected a string \"", key, "\""));
  return json.at(key).get<std::string>();
}

int64_t label_of(const nlohmann::json& json, size_t choices) {
  int64_t label = -1;
  if (json.contains("label") && json.at("label").is_number_integer()) label = json.at("label").get<int64_t>();
  if (json.contains("label") && json.at("label").is_string()) {  // a string label, as in HellaSwag on the Hugging Face
                                                                 // hub
    const auto text = json.at("label").get<std::string>();
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), label);
    if (error != std::errc() || stop != text.data() + text.size()) label = -1;
  }
  if (label < 0 || label >= int64_t(choices))
    refuse_question(cat("label: expected the number of the right choice, 0 to ", choices - 1, ", got ",
                        json.contains("label") ? json.at("label").dump().substr(0, 40) : "none"));
  return label;
}

int64_t characters_of(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(), [](char c) { return (uint8_t(c) & 0xc0) != 0x80; });
}

void require_known(const std::vector<int32_t>& ids, int64_t vocab_size) {
  for (const int32_t id : ids)
    if (id >= vocab_size)
      refuse_question(cat("token ", id, " is not below the model's vocabulary of ", vocab_size,
                          ": this is another model's tokenizer"));
}

Question question_of(const std::string& line, const Tokenizer& tokenizer, QuestionLimits limits) {
  if (!json_depth_within(line)) refuse_question(cat("JSON nested deeper than ", kMostJsonDepth, " levels"));
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) refuse_question("expected a JSON object");
  const bool hellaswag = json.contains("endings");
  const char* list = hellaswag ? "endings" : "choices";
  if (!json.contains(list) || !json.at(list).is_array())
    refuse_question("expected a list \"choices\" (or HellaSwag's \"endings\")");
  const nlohmann::json& texts = json.at(list);
  if (texts.size() < 2 || texts.size() > kMaxChoices)
    refuse_question(cat(list, ": expected 2 to ", kMaxChoices, " texts, got ", texts.size()));
  Question q;
  q.context = tokenizer.encode(text_of(json, hellaswag ? "ctx" : "context"));
  // An empty context: the text begins after the end of another document, as a document does.
  const TextPlace place = q.context.empty() && !hellaswag ? TextPlace::document : TextPlace::inside;
  if (q.context.empty()) q.context.push_back(tokenizer.eod_id());
  require_known(q.context, limits.vocab_size);
  for (const nlohmann::json& text : texts) {
    if (!text.is_string()) refuse_question(cat(list, ": expected texts, got ", text.dump().substr(0, 40)));
    const auto choice = text.get<std::string>();
    q.choices.push_back(tokenizer.encode(hellaswag ? " " + choice : choice, place));
    q.characters.push_back(characters_of(choice));
    if (choice.empty()) refuse_question(cat(list, ": choice ", q.choices.size() - 1, " is empty"));
    if (q.choices.back().empty()) refuse_question(cat(list, ": choice ", q.choices.size() - 1, " has no token"));
    if (int64_t(q.choices.back().size()) > limits.seq_length)
      refuse_question(cat(list, ": choice ", q.choices.size() - 1, " has ", q.choices.back().size(),
                          " tokens, more than the sequence length ", limits.seq_length));
    require_known(q.choices.back(), limits.vocab_size);
  }
  q.label = label_of(json, texts.size());
  return q;
}

}  // namespace

std::string fingerprint(const std::vector<Question>& questions) {
  Xxh3 hash;
  const auto add = [&hash]<class T>(const std::vector<T>& list) {
    const auto count = int64_t(list.size());
    hash.update(&count, sizeof count);
    hash.update(std::as_bytes(std::span(list)));
  };
  for (const Question& q : questions) {
    add(q.context);
    for (const auto& choice : q.choices) add(choice);
    add(q.characters);
    hash.update(&q.label, sizeof q.label);
  }
  return hash.hex();
}

std::vector<Question> read_questions(const std::string& path, const Tokenizer& tokenizer, QuestionLimits limits) {
  if (!std::filesystem::exists(path))
    refuse_question(cat(path, ": there is no such file of questions: check the path"));
  const std::string text = read_file(path, kMaxFile);
  std::vector<Question> questions;
  for_each_nonblank_line(text, [&](const std::string& line, int64_t number) {
    with_context(cat(path, ": line ", number), [&] {
      if (int64_t(line.size()) > kMaxLine)
        refuse_question(cat("has ", line.size(), " bytes, expected at most ", kMaxLine));
      questions.push_back(question_of(line, tokenizer, limits));
    });
  });
  if (questions.empty()) refuse_question(cat(path, ": holds no question"));
  return questions;
}

}  // namespace athanor
