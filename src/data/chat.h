// Conversations for fine-tuning: parses common JSON line formats and renders them with a chat template into segments of
// text, each marked as trained on or not. Does not tokenize.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace athanor {

struct ChatMessage {
  enum class Role : uint8_t { system, user, assistant };
  Role role = Role::user;
  std::string content;
  bool operator==(const ChatMessage&) const = default;
};
using Conversation = std::vector<ChatMessage>;

// Accepted JSON objects: {"messages": [{"role", "content"}]}; {"prompt", "completion"}; {"instruction", "input",
// "output"}; {"conversations": [{"from", "value"}]}.
enum class ChatShape : uint8_t { messages, prompt, alpaca, sharegpt };
std::optional<ChatShape> chat_shape_named(std::string_view name);
std::vector<std::string> chat_shape_names();

// shape: if absent, detected from the keys of the line. An invalid line throws an Error(usage) with the expected form.
Conversation parse_chat(std::string_view line, std::optional<ChatShape> shape = {});

// Published chat templates; plain uses no template: texts as they are, and the end-of-document token after each answer.
enum class ChatTemplate : uint8_t { chatml, llama3, llama2, mistral, gemma, plain };
std::optional<ChatTemplate> chat_template_named(std::string_view name);
std::vector<std::string> chat_template_names();

// A part of a conversation that is tokenized separately.
struct ChatSegment {
  enum class Kind : uint8_t {
    text,
    special,  // the text is one special token
    mark,     // one special token, or ordinary text if the tokenizer lacks it
    end       // the end-of-document token; no text
  };
  std::string text;
  Kind kind = Kind::text;
  bool learnt = false;  // trained on: an answer, or the token that ends one
  bool operator==(const ChatSegment&) const = default;
};
// Throws Error(usage) for conversations that the template cannot express: roles that do not alternate, a system message
// in the middle.
std::vector<ChatSegment> apply_template(ChatTemplate, const Conversation&);

}  // namespace athanor
