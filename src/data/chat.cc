#include "data/chat.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"

namespace athanor {
namespace {

using Json = nlohmann::json;
using Role = ChatMessage::Role;
using Kind = ChatSegment::Kind;

constexpr std::string_view kShapes[] = {"messages", "prompt", "alpaca", "sharegpt"};
constexpr std::string_view kTemplates[] = {"chatml", "llama3", "llama2", "mistral", "gemma", "plain"};
constexpr std::string_view kShapeMembers[] = {"messages", "prompt", "instruction", "conversations"};

[[noreturn]] void refuse(const std::string& why) { throw Error(why, Exit::usage); }

std::string names_of(std::span<const std::string_view> names) {
  std::string all;
  for (const std::string_view name : names) all += cat(all.empty() ? "" : ", ", name);
  return all;
}

template <class E>
std::optional<E> named(std::span<const std::string_view> names, std::string_view name) {
  const auto found = std::ranges::find(names, name);
  return found == names.end() ? std::nullopt : std::optional(E(found - names.begin()));
}

std::string text_of(const Json& object, const char* member, const std::string& where, bool optional = false) {
  const auto found = object.find(member);
  if (found == object.end() || (optional && found->is_null())) {
    if (optional) return "";
    refuse(cat(where, ": no member \"", member, "\""));
  }
  if (!found->is_string()) refuse(cat(where, ": \"", member, "\": expected a string, got ", found->type_name()));
  return found->get<std::string>();
}

Role role_named(const std::string& name, const std::string& where) {
  if (name == "system" || name == "developer") return Role::system;
  if (name == "user" || name == "human") return Role::user;
  if (name == "assistant" || name == "gpt" || name == "model" || name == "chatgpt") return Role::assistant;
  refuse(cat(where, ": the role \"", name, "\" is none of system, user (human) and assistant (gpt)"));
}

Conversation turns(const Json& line, const char* list, const char* role, const char* content) {
  const auto found = line.find(list);
  if (found == line.end() || !found->is_array() || found->empty())
    refuse(cat("\"", list, "\": expected a list of turns with \"", role, "\" and \"", content, "\""));
  Conversation all;
  for (const Json& turn : *found) {
    const std::string where = cat(list, "[", all.size(), "]");
    if (!turn.is_object()) refuse(cat(where, ": expected an object, got ", turn.type_name()));
    all.push_back({role_named(text_of(turn, role, where), where), text_of(turn, content, where)});
  }
  return all;
}

// If prompt and completion are lists of turns, they form one conversation.
Conversation prompt_and_completion(const Json& line) {
  if (line.contains("prompt") && line["prompt"].is_array()) {
    Conversation all = turns(line, "prompt", "role", "content");
    for (ChatMessage& m : turns(line, "completion", "role", "content")) all.push_back(std::move(m));
    return all;
  }
  return {{Role::user, text_of(line, "prompt", "the line")},
          {Role::assistant, text_of(line, "completion", "the line")}};
}

Conversation alpaca(const Json& line) {
  std::string asked = text_of(line, "instruction", "the line");
  const std::string input = text_of(line, "input", "the line", true);
  if (!input.empty()) asked += "\n\n" + input;
  return {{Role::user, std::move(asked)}, {Role::assistant, text_of(line, "output", "the line")}};
}

std::string trimmed(const std::string& text) {
  constexpr const char* kSpace = " \t\n\r\f\v";
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

// Collects segments; omits empty texts.
struct ChatWriter {
  std::vector<ChatSegment> all;
  void text(std::string text, bool learnt = false) {
    if (!text.empty()) all.push_back({std::move(text), Kind::text, learnt});
  }
  void special(const char* token, bool learnt = false) { all.push_back({token, Kind::special, learnt}); }
  void mark(const char* token) { all.push_back({token, Kind::mark, false}); }
};

// The system message, if any, followed by pairs of question and answer; the last turn is an answer.
struct Turns {
  std::string system;
  std::vector<std::pair<std::string, std::string>> pairs;

  Turns(const Conversation& chat, const char* name) {
    size_t at = 0;
    if (chat.front().role == Role::system) system = chat[at++].content;
    for (; at < chat.size(); at += 2) {
      if (chat[at].role != Role::user || at + 1 >= chat.size() || chat[at + 1].role != Role::assistant)
        refuse(cat("template ", name, ": turn ", at + 1,
                   ": expected alternating user and assistant messages after at most one system message; use another "
                   "template, or remove the line"));
      pairs.emplace_back(chat[at].content, chat[at + 1].content);
    }
  }
};

void chatml(ChatWriter& out, const Conversation& chat) {
  constexpr const char* kRoles[] = {"system\n", "user\n", "assistant\n"};
  for (const ChatMessage& m : chat) {
    const bool answer = m.role == Role::assistant;
    out.special("<|im_start|>");
    out.text(kRoles[size_t(m.role)]);
    out.text(m.content, answer);
    out.special("<|im_end|>", answer);
    out.text("\n");
  }
}

void llama3(ChatWriter& out, const Conversation& chat) {
  constexpr const char* kRoles[] = {"system", "user", "assistant"};
  out.special("<|begin_of_text|>");
  for (const ChatMessage& m : chat) {
    const bool answer = m.role == Role::assistant;
    out.special("<|start_header_id|>");
    out.text(kRoles[size_t(m.role)]);
    out.special("<|end_header_id|>");
    out.text("\n\n");
    out.text(trimmed(m.content), answer);
    out.special("<|eot_id|>", answer);
  }
}

void llama2(ChatWriter& out, const Conversation& chat) {
  Turns turns(chat, "llama2");
  std::string system = turns.system.empty() ? "" : cat("<<SYS>>\n", turns.system, "\n<</SYS>>\n\n");
  for (const auto& [question, answer] : turns.pairs) {
    out.special("<s>");
    out.text(cat("[INST] ", system, trimmed(question), " [/INST]"));
    out.text(cat(" ", trimmed(answer), " "), true);
    out.special("</s>", true);
    system.clear();
  }
}

// Newer tokenizers have [INST] as a special token.
void mistral(ChatWriter& out, const Conversation& chat) {
  Turns turns(chat, "mistral");
  std::string system = turns.system.empty() ? "" : turns.system + "\n\n";
  out.special("<s>");
  for (const auto& [question, answer] : turns.pairs) {
    out.mark("[INST]");
    out.text(cat(" ", system, question));
    out.text(" ");
    out.mark("[/INST]");
    out.text(" " + answer, true);
    out.special("</s>", true);
    system.clear();
  }
}

void gemma(ChatWriter& out, const Conversation& chat) {
  Turns turns(chat, "gemma");
  std::string system = turns.system.empty() ? "" : trimmed(turns.system) + "\n\n";
  out.special("<bos>");
  for (const auto& [question, answer] : turns.pairs) {
    out.special("<start_of_turn>");
    out.text(cat("user\n", system, trimmed(question)));
    out.special("<end_of_turn>");
    out.text("\n");
    out.special("<start_of_turn>");
    out.text("model\n");
    out.text(trimmed(answer), true);
    out.special("<end_of_turn>", true);
    out.text("\n");
    system.clear();
  }
}

void plain(ChatWriter& out, const Conversation& chat) {
  for (const ChatMessage& m : chat) {
    const bool answer = m.role == Role::assistant;
    out.text(m.content, answer);
    if (answer) out.all.push_back({"", Kind::end, true});
  }
}

}  // namespace

std::optional<ChatShape> chat_shape_named(std::string_view name) { return named<ChatShape>(kShapes, name); }
std::vector<std::string> chat_shape_names() { return {std::begin(kShapes), std::end(kShapes)}; }
std::optional<ChatTemplate> chat_template_named(std::string_view name) { return named<ChatTemplate>(kTemplates, name); }
std::vector<std::string> chat_template_names() { return {std::begin(kTemplates), std::end(kTemplates)}; }

Conversation parse_chat(std::string_view line, std::optional<ChatShape> shape) {
  const Json json = parse_json_text<Json>(line, "the line");
  if (!json.is_object()) refuse(cat("expected an object, got ", json.type_name()));
  for (size_t i = 0; !shape && i < std::size(kShapeMembers); ++i)
    if (json.contains(std::string(kShapeMembers[i]))) shape = ChatShape(i);
  if (!shape) refuse(cat("expected an object with one of the members ", names_of(kShapeMembers)));
  switch (*shape) {
    case ChatShape::messages:
      return turns(json, "messages", "role", "content");
    case ChatShape::prompt:
      return prompt_and_completion(json);
    case ChatShape::alpaca:
      return alpaca(json);
    case ChatShape::sharegpt:
      return turns(json, "conversations", "from", "value");
  }
  return {};
}

std::vector<ChatSegment> apply_template(ChatTemplate which, const Conversation& chat) {
  constexpr void (*kWriters[])(ChatWriter&, const Conversation&) = {chatml, llama3, llama2, mistral, gemma, plain};
  CHECK(!chat.empty(), "a conversation without turns");
  ChatWriter out;
  kWriters[size_t(which)](out, chat);
  return std::move(out.all);
}

}  // namespace athanor
