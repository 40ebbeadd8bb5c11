#include "tasks/completions.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "tasks/chat_output.h"
#include "text/chat_template.h"
#include "text/json_depth.h"
#include "text/utf8.h"

namespace speech {

using Json = nlohmann::ordered_json;

namespace {

[[noreturn]] void bad(const std::string& field, const std::string& message) {
  throw Error(Status::invalid_argument, field, field.empty() ? message : field + ": " + message);
}

// Typed access to the fields of a request, and an account of which were read.
class Fields {
 public:
  explicit Fields(std::string_view text) {
    // What walks the request later does so by recursion: templates, schemas, printing.
    constexpr int kDepth = 256;
    if (json_nests_deeper(text, kDepth)) bad("", "the request is nested too deeply");
    json_ = Json::parse(text, nullptr, false);
    if (json_.is_discarded()) bad("", "the request is not valid JSON");
    if (!json_.is_object()) bad("", "the request is not a JSON object");
  }

  // Null when absent or null.
  const Json* find(const std::string& name) {
    known_.insert(name);
    auto it = json_.find(name);
    return it == json_.end() || it->is_null() ? nullptr : &*it;
  }
  bool boolean(const std::string& name, bool fallback) {
    const Json* v = find(name);
    if (!v) return fallback;
    if (!v->is_boolean()) bad(name, "expected true or false");
    return v->get<bool>();
  }
  double number(const std::string& name, double fallback) {
    const Json* v = find(name);
    if (!v) return fallback;
    if (!v->is_number()) bad(name, "expected a number");
    return v->get<double>();
  }
  std::optional<int64_t> integer(const std::string& name) {
    const Json* v = find(name);
    if (!v) return std::nullopt;
    if (!v->is_number_integer()) bad(name, "expected an integer");
    if (v->is_number_unsigned() && v->get<uint64_t>() > INT64_MAX) bad(name, "is too large");
    return v->get<int64_t>();
  }
  std::string text(const std::string& name, const std::string& fallback) {
    const Json* v = find(name);
    if (!v) return fallback;
    if (!v->is_string()) bad(name, "expected a string");
    return v->get<std::string>();
  }
  // Fields that clients send and that change nothing here.
  void accept(std::initializer_list<const char*> names) {
    for (const char* name : names) known_.insert(name);
  }
  void accept_only(const std::string& name, const Json& value) {
    const Json* v = find(name);
    if (v && *v != value) bad(name, "only " + value.dump() + " is supported");
  }
  void refuse_unknown() const {
    for (const auto& [name, value] : json_.items()) {
      if (!known_.count(name) && !value.is_null()) bad(name, "is not a field this server knows");
    }
  }

 private:
  Json json_;
  std::set<std::string> known_;
};

// As OpenAI's servers do: a field inside `object` that is none of `names` is refused. `place` says
// where the object lies ("tools[0].function").
void refuse_others(const Json& object, const std::string& place,
                   std::initializer_list<std::string_view> names) {
  for (const auto& [name, value] : object.items()) {
    bool known = value.is_null() || std::find(names.begin(), names.end(), name) != names.end();
    if (!known) bad(place + "." + name, "is not a field this server knows");
  }
}

std::vector<std::string> stop_strings(Fields& f) {
  const Json* v = f.find("stop");
  if (!v) return {};
  std::vector<std::string> stops;
  auto add = [&](const Json& s) {
    if (!s.is_string()) bad("stop", "expected a string or up to 16 of them");
    stops.push_back(s.get<std::string>());
  };
  if (v->is_array()) {
    if (v->size() > 16) bad("stop", "at most 16 strings");
    for (const Json& s : *v) add(s);
  } else {
    add(*v);
  }
  return stops;
}

SamplingSettings sampling(Fields& f, const LanguageModel& model) {
  const SamplingDefaults& d = model.sampling();
  SamplingSettings s;
  s.temperature = f.number("temperature", d.sample ? d.temperature : 0);
  s.top_p = f.number("top_p", d.sample ? d.top_p : 1);
  s.top_k = f.integer("top_k").value_or(d.sample ? d.top_k : 0);
  s.min_p = f.number("min_p", d.sample ? d.min_p : 0);
  s.presence_penalty = f.number("presence_penalty", 0);
  s.frequency_penalty = f.number("frequency_penalty", 0);
  s.repetition_penalty = f.number("repetition_penalty", d.repetition_penalty);
  s.suppressed = d.suppressed;
  if (const Json* bias = f.find("logit_bias")) {
    if (!bias->is_object()) bad("logit_bias", "expected an object of token ids and numbers");
    for (const auto& [id, value] : bias->items()) {
      if (id.empty() || id.size() > 9 || id.find_first_not_of("0123456789") != std::string::npos ||
          !value.is_number()) {
        bad("logit_bias", "expected an object of token ids and numbers");
      }
      s.logit_bias[std::stoi(id)] = value.get<double>();
    }
  }
  auto seed = f.integer("seed");
  s.seed = seed ? static_cast<uint64_t>(*seed)
                : (uint64_t{std::random_device()()} << 32 | std::random_device()());
  s.check();
  return s;
}

std::string random_id(const char* prefix) {
  std::random_device device;
  return fmt::format("{}{:08x}{:08x}{:08x}", prefix, device(), device(), device());
}

int64_t unix_time() {
  return std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
}

Json byte_list(std::string_view bytes) {
  Json list = Json::array();
  for (char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return list;
}

double finite(double log_probability) {
  return std::max(log_probability, -9999.0);
}

// chat: logprobs.content entries.
Json chat_log_probabilities(std::span<const GeneratedToken> tokens, const LanguageModel& model) {
  auto entry = [](std::string_view bytes, double p) {
    return Json{{"token", replace_invalid_utf8(bytes)},
                {"logprob", finite(p)},
                {"bytes", byte_list(bytes)}};
  };
  Json content = Json::array();
  for (const GeneratedToken& t : tokens) {
    Json e = entry(t.bytes, t.log_probability);
    e["top_logprobs"] = Json::array();
    for (auto [id, p] : t.top) e["top_logprobs"].push_back(entry(model.tokenizer()->bytes(id), p));
    content.push_back(std::move(e));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

int64_t code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

// text completions: parallel arrays; `offset` counts code points of the text so far.
Json text_log_probabilities(std::span<const GeneratedToken> tokens, const LanguageModel& model,
                            bool first_unknown, int64_t offset) {
  Json j{{"tokens", Json::array()},
         {"token_logprobs", Json::array()},
         {"top_logprobs", Json::array()},
         {"text_offset", Json::array()}};
  bool unknown = first_unknown;
  for (const GeneratedToken& t : tokens) {
    std::string text = replace_invalid_utf8(t.bytes);
    j["tokens"].push_back(text);
    j["text_offset"].push_back(offset);
    offset += code_points(text);
    if (unknown) {
      j["token_logprobs"].push_back(nullptr);
      j["top_logprobs"].push_back(nullptr);
    } else {
      j["token_logprobs"].push_back(finite(t.log_probability));
      Json top = Json::object();
      for (auto [id, p] : t.top) {
        // Parts of characters look alike: the likeliest keeps the name, and they come in that
        // order.
        top.emplace(replace_invalid_utf8(model.tokenizer()->bytes(id)), finite(p));
      }
      j["top_logprobs"].push_back(std::move(top));
    }
    unknown = false;
  }
  return j;
}

// Makes the references of a schema, which lead from its root, lead there from the root of one that
// holds it at `place`.
void relocate(Json& schema, const std::string& place) {
  if (schema.is_array()) {
    for (Json& part : schema) relocate(part, place);
  } else if (schema.is_object()) {
    for (auto& [key, value] : schema.items()) {
      if (key == "$ref" && value.is_string()) {
        std::string target = value.get<std::string>();
        if (target.starts_with('#')) value = "#" + place + target.substr(1);
      } else if (key != "const" && key != "enum" && key != "default" && key != "examples") {
        relocate(value, place);
      }
    }
  }
}

// ---- chat requests ----

constexpr const char *kForcedCall = "<tool_call>\n", *kForcedEnd = "\n</tool_call>";

struct Tool {
  std::string name;
  Json parameters;  // JSON schema
};

std::vector<Tool> read_tools(const Json* tools) {
  std::vector<Tool> result;
  if (!tools) return result;
  if (!tools->is_array()) bad("tools", "expected a list");
  for (const Json& t : *tools) {
    std::string place = fmt::format("tools[{}]", result.size());
    if (!t.is_object() || !t.contains("type") || t["type"] != "function" ||
        !t.contains("function") || !t["function"].is_object() || !t["function"].contains("name") ||
        !t["function"]["name"].is_string()) {
      bad("tools", "each tool needs type \"function\" and function.name");
    }
    refuse_others(t, place, {"type", "function"});
    refuse_others(t["function"], place + ".function",
                  {"name", "description", "parameters", "strict"});
    result.push_back({t["function"]["name"].get<std::string>(),
                      t["function"].value("parameters", Json::object())});
  }
  return result;
}

}  // namespace

// A generation and the way its text comes to the thread that waits for it.
struct Completions::Job {
  GenerationRequest request;
  std::shared_ptr<Generation> generation;  // set by the model's thread
  std::mutex mutex;
  std::condition_variable changed;
  std::string text;                    // not fetched yet
  std::vector<GeneratedToken> tokens;  // not fetched yet
  bool cancelled = false, done = false;

  void cancel() {
    std::lock_guard lock(mutex);
    cancelled = true;
  }
};

// The jobs of one request: however it ends, nothing of it goes on being computed.
class Completions::JobList : public std::vector<std::shared_ptr<Job>> {
 public:
  JobList() = default;
  JobList(const JobList&) = delete;
  JobList& operator=(const JobList&) = delete;
  ~JobList() {
    for (auto& job : *this) job->cancel();
  }
};

Completions::Completions(LanguageModel& model, CompletionSettings settings)
    : model_(model),
      settings_(std::move(settings)),
      cache_(model, {}, settings_.cache_folder),
      generator_(model, {.sequences = settings_.sequences}, &cache_),
      tokens_(std::make_shared<const TokenTrie>(model.tokenizer(), model.eos(),
                                                static_cast<int32_t>(model.vocabulary()))),
      grammars_(tokens_) {
  if (!model.chat_template().empty()) template_.emplace(model.chat_template());
  if (!settings_.default_grammar.empty()) {
    default_grammar_ = Grammar::from_text(settings_.default_grammar, tokens_);
  }
  thread_ = std::thread([this] { loop(); });
}

Completions::~Completions() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    for (auto& job : running_) job->cancel();
  }
  work_.notify_all();
  thread_.join();
}

void Completions::submit(std::vector<GenerationRequest> requests, JobList& jobs) {
  for (GenerationRequest& request : requests) {
    generator_.check(request);
    auto job = std::make_shared<Job>();
    Job* j = job.get();
    request.on_text = [j](std::string_view text, std::span<const GeneratedToken> tokens) {
      std::lock_guard lock(j->mutex);
      j->text += text;
      j->tokens.insert(j->tokens.end(), tokens.begin(), tokens.end());
      j->changed.notify_all();
      return j->cancelled;
    };
    job->request = std::move(request);
    jobs.push_back(std::move(job));
  }
  // All or none: a list longer than the queue could not ever come in one by one.
  std::lock_guard lock(mutex_);
  if (arrived_.size() + counts_.waiting >= settings_.queue) {
    fail(Status::busy, "{} requests are waiting already", settings_.queue);
  }
  arrived_.insert(arrived_.end(), jobs.begin(), jobs.end());
  counts_.requests += jobs.size();
  work_.notify_all();
}

void Completions::loop() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      work_.wait(lock, [&] { return stopping_ || !arrived_.empty() || !running_.empty(); });
      if (stopping_ && arrived_.empty() && running_.empty()) return;
      for (auto& job : arrived_) {
        job->generation = generator_.add(std::move(job->request));
        running_.push_back(job);
      }
      arrived_.clear();
      counts_.waiting = generator_.waiting();
      for (auto& job : running_) {
        std::lock_guard job_lock(job->mutex);
        if (job->cancelled || stopping_) job->generation->cancel();
      }
    }
    generator_.step();
    std::lock_guard lock(mutex_);
    counts_.running = generator_.running();
    counts_.waiting = generator_.waiting();
    std::erase_if(running_, [&](auto& job) {
      if (!job->generation->done()) return false;
      const GenerationResult& r = job->generation->result();
      counts_.failed += r.finish == Finish::failed;
      counts_.cancelled += r.finish == Finish::cancelled;
      counts_.prompt_tokens += job->generation->prompt_size();
      counts_.cached_tokens += static_cast<uint64_t>(r.cached_tokens);
      counts_.generated_tokens += r.tokens.size();
      counts_.prompt_seconds += r.prompt_seconds;
      counts_.generation_seconds += r.total_seconds - r.prompt_seconds;
      std::lock_guard job_lock(job->mutex);
      job->done = true;
      job->changed.notify_all();
      return true;
    });
  }
}

CompletionCounts Completions::counts() const {
  std::lock_guard lock(mutex_);
  CompletionCounts c = counts_;
  c.waiting += arrived_.size();
  c.grammars = grammars_.compiled();
  return c;
}

// One request: what it asks for, and how its answer is put together.
class Completions::Conversation {
 public:
  Conversation(Completions& owner, CompletionKind kind, std::string_view request)
      : owner_(owner), model_(owner.model_), kind_(kind), fields_(request) {
    if (kind == CompletionKind::chat) {
      read_chat();
    } else {
      read_text();
    }
    read_common();
    fields_.refuse_unknown();
  }

  const std::string& prompt_text() const { return prompt_text_; }
  const std::vector<int32_t>& prompt() const { return prompts_[0]; }

  std::string run(const Callbacks& callbacks);

 private:
  void read_chat();
  void read_text();
  void read_common();
  void set_grammar(const char* field,
                   const std::function<std::shared_ptr<const Grammar>()>& compile);
  void read_format(const Json& format);
  void read_tool_choice(const std::vector<Tool>& tools);

  // Waits for news of `job`; false once it is done and everything was fetched.
  bool fetch(Job& job, const Callbacks& callbacks, std::string& text,
             std::vector<GeneratedToken>& tokens);
  Json envelope(const char* object) const;
  Json usage(int64_t prompt, int64_t cached, int64_t generated, int64_t reasoning) const;
  std::string run_stream(const Callbacks& callbacks);
  Json chat_choice(const GenerationResult& result, int64_t& reasoning) const;
  Json text_choice(const GenerationResult& result, size_t index) const;
  std::string whole_answer(const GenerationResult& result) const;
  int64_t reasoning_tokens(const std::vector<GeneratedToken>& tokens) const;
  GenerationRequest request_for(size_t index) const;

  Completions& owner_;
  LanguageModel& model_;
  CompletionKind kind_;
  Fields fields_;
  std::string id_, prompt_text_;
  std::vector<std::vector<int32_t>> prompts_;
  GenerationRequest base_;
  bool stream_ = false, include_usage_ = false, echo_ = false, has_tools_ = false;
  bool inside_thinking_ = false, forced_call_ = false, return_ids_ = false;
  const char* grammar_field_ = nullptr;

  static constexpr std::chrono::milliseconds kAskEvery{200};
  std::chrono::steady_clock::time_point asked_{};  // when callbacks.gone was last called
};

void Completions::Conversation::set_grammar(
    const char* field, const std::function<std::shared_ptr<const Grammar>()>& compile) {
  if (grammar_field_) {
    bad(field,
        fmt::format("{} constrains the answer already; one of the two must go", grammar_field_));
  }
  grammar_field_ = field;
  try {
    base_.grammar = compile();
  } catch (const Error& e) {
    throw Error(e.status(), field, fmt::format("{}: {}", field, e.what()));
  }
}

void Completions::Conversation::read_format(const Json& format) {
  if (!format.is_object() || !format.contains("type") || !format["type"].is_string()) {
    bad("response_format", "expected an object with a type");
  }
  std::string type = format["type"].get<std::string>();
  if (type == "text") return refuse_others(format, "response_format", {"type"});
  if (type == "json_object") {
    refuse_others(format, "response_format", {"type", "schema"});
    // llama.cpp's servers take a schema here.
    return set_grammar("response_format", [&] {
      return format.contains("schema") ? owner_.grammars_.from_json_schema(format["schema"].dump())
                                       : owner_.grammars_.json_object();
    });
  }
  if (type != "json_schema") {
    bad("response_format", "type is \"" + type + "\", expected text, json_object or json_schema");
  }
  const Json* schema = format.contains("json_schema") && format["json_schema"].is_object() &&
                               format["json_schema"].contains("schema")
                           ? &format["json_schema"]["schema"]
                           : nullptr;
  if (!schema) bad("response_format", "json_schema.schema is missing");
  refuse_others(format, "response_format", {"type", "json_schema"});
  refuse_others(format["json_schema"], "response_format.json_schema",
                {"name", "description", "schema", "strict"});
  set_grammar("response_format", [&] { return owner_.grammars_.from_json_schema(schema->dump()); });
}

void Completions::Conversation::read_tool_choice(const std::vector<Tool>& tools) {
  const Json* choice = fields_.find("tool_choice");
  std::string only;
  bool required = false;
  if (choice && choice->is_string()) {
    std::string text = choice->get<std::string>();
    if (text == "none") has_tools_ = false;
    required = text == "required";
    if (text != "none" && text != "auto" && !required) {
      bad("tool_choice", "expected none, auto, required or a function");
    }
  } else if (choice) {
    const Json* function =
        choice->is_object() && choice->contains("function") ? &(*choice)["function"] : nullptr;
    if (!function || !function->is_object() || !function->contains("name") ||
        !(*function)["name"].is_string()) {
      bad("tool_choice", "expected none, auto, required or a function");
    }
    refuse_others(*choice, "tool_choice", {"type", "function"});
    refuse_others(*function, "tool_choice.function", {"name"});
    only = (*function)["name"].get<std::string>();
    required = true;
  }
  if (!required) return;
  // The answer is made to begin with <tool_call>; what follows is one of the calls as JSON.
  std::vector<const Tool*> allowed;
  for (const Tool& t : tools) {
    if (only.empty() || t.name == only) allowed.push_back(&t);
  }
  if (allowed.empty()) bad("tool_choice", "names no tool of this request");
  Json calls = Json::array();
  for (const Tool* t : allowed) {
    Json parameters = t->parameters.empty() ? Json{{"type", "object"}} : t->parameters;
    std::string call = allowed.size() == 1 ? "" : fmt::format("/anyOf/{}", calls.size());
    relocate(parameters, call + "/properties/arguments");
    calls.push_back({{"type", "object"},
                     {"properties", {{"name", {{"const", t->name}}}, {"arguments", parameters}}},
                     {"required", Json::array({"name", "arguments"})},
                     {"additionalProperties", false}});
  }
  Json schema = calls.size() == 1 ? calls[0] : Json{{"anyOf", calls}};
  set_grammar("tool_choice", [&] { return owner_.grammars_.from_json_schema(schema.dump()); });
  forced_call_ = true;
}

void Completions::Conversation::read_chat() {
  id_ = random_id("chatcmpl-");
  const Json* messages = fields_.find("messages");
  if (!messages) bad("messages", "is required");
  const Json* tools_json = fields_.find("tools");
  std::vector<Tool> tools = read_tools(tools_json);
  has_tools_ = !tools.empty();
  read_tool_choice(tools);
  if (const Json* format = fields_.find("response_format")) read_format(*format);
  if (fields_.find("grammar")) {
    set_grammar("grammar", [&] { return owner_.grammars_.from_text(fields_.text("grammar", "")); });
  }
  if (!grammar_field_ && owner_.default_grammar_) {
    base_.grammar = owner_.default_grammar_;
  }

  Json variables = Json::object();
  if (const Json* given = fields_.find("chat_template_kwargs")) {
    if (!given->is_object()) bad("chat_template_kwargs", "expected an object");
    variables = *given;
  }
  if (fields_.find("enable_thinking")) {
    variables["enable_thinking"] = fields_.boolean("enable_thinking", true);
  }
  if (base_.grammar) {
    // A grammar holds from the first token on, which leaves no room for <think>.
    if (variables.value("enable_thinking", Json()) == true) {
      bad("enable_thinking", "a constrained answer cannot think first; leave it out or false");
    }
    variables["enable_thinking"] = false;
  }
  if (!owner_.template_) {
    fail_option(Status::unsupported, "messages", "{} has no chat template; use /v1/completions",
                owner_.settings_.model_name);
  }
  MarkedText rendered =
      owner_.template_->render(*messages, has_tools_ ? *tools_json : Json(), variables);
  if (forced_call_) rendered.append(kForcedCall, false);
  prompt_text_ = rendered.text;
  prompts_.push_back(model_.tokenizer()->encode_marked(rendered.text, rendered.marks));
  // Some templates end the prompt inside the reasoning.
  size_t open = prompt_text_.rfind("<think>"), close = prompt_text_.rfind("</think>");
  inside_thinking_ =
      prompt_text_.ends_with("<think>\n") && (close == std::string::npos || open > close);

  auto most = fields_.integer("max_completion_tokens");
  auto older = fields_.integer("max_tokens");
  base_.max_tokens = most ? *most : older.value_or(-1);
  if ((most || older) && base_.max_tokens < 1) bad("max_completion_tokens", "expected 1 or more");
  bool log_probabilities = fields_.boolean("logprobs", false);
  auto top = fields_.integer("top_logprobs");
  if (top && (*top < 0 || *top > 20)) bad("top_logprobs", "expected 0 to 20");
  if (top && !log_probabilities) bad("top_logprobs", "needs logprobs to be true");
  if (log_probabilities) base_.top_log_probabilities = static_cast<int>(top.value_or(0));
  fields_.accept({"parallel_tool_calls", "safety_identifier", "prompt_cache_key"});
}

void Completions::Conversation::read_text() {
  id_ = random_id("cmpl-");
  const Json* prompt = fields_.find("prompt");
  if (!prompt) bad("prompt", "is required");
  auto add_text = [&](const Json& text) {
    prompts_.push_back(model_.tokenizer()->encode(text.get<std::string>()));
  };
  auto add_ids = [&](const Json& ids) {
    std::vector<int32_t> list;
    for (const Json& id : ids) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 ||
          id.get<int64_t>() >= model_.vocabulary()) {
        bad("prompt", "expected token ids of the vocabulary");
      }
      list.push_back(id.get<int32_t>());
    }
    prompts_.push_back(std::move(list));
  };
  if (prompt->is_string()) {
    add_text(*prompt);
  } else if (prompt->is_array() && !prompt->empty() && (*prompt)[0].is_number()) {
    add_ids(*prompt);
  } else if (prompt->is_array() && !prompt->empty() && prompt->size() <= 128) {
    for (const Json& p : *prompt) {
      if (p.is_string()) {
        add_text(p);
      } else if (p.is_array()) {
        add_ids(p);
      } else {
        bad("prompt", "expected texts or lists of token ids");
      }
    }
  } else {
    bad("prompt", "expected a text, token ids, or up to 128 of either");
  }
  echo_ = fields_.boolean("echo", false);
  auto most = fields_.integer("max_tokens");
  base_.max_tokens = most.value_or(16);
  if (base_.max_tokens < (echo_ ? 0 : 1)) bad("max_tokens", "expected 1 or more");
  if (auto count = fields_.integer("logprobs")) {
    if (*count < 0 || *count > 20) bad("logprobs", "expected 0 to 20");
    base_.top_log_probabilities = static_cast<int>(*count);
    base_.prompt_log_probabilities = echo_;
  }
  return_ids_ = fields_.boolean("return_ids", false);
  fields_.accept_only("best_of", 1);
  fields_.accept_only("suffix", "");
  if (fields_.find("grammar")) {
    set_grammar("grammar", [&] { return owner_.grammars_.from_text(fields_.text("grammar", "")); });
  } else if (owner_.default_grammar_) {
    base_.grammar = owner_.default_grammar_;
  }
}

void Completions::Conversation::read_common() {
  base_.sampling = sampling(fields_, model_);
  base_.stop = stop_strings(fields_);
  base_.ignore_eos = fields_.boolean("ignore_eos", false);
  stream_ = fields_.boolean("stream", false);
  if (const Json* options = fields_.find("stream_options")) {
    if (!options->is_object()) bad("stream_options", "expected an object");
    refuse_others(*options, "stream_options", {"include_usage", "include_obfuscation"});
    Json include = options->value("include_usage", Json());
    if (!include.is_null() && !include.is_boolean()) {
      bad("stream_options.include_usage", "expected true or false");
    }
    include_usage_ = include == true;
  }
  if (stream_ && prompts_.size() > 1) bad("stream", "one prompt at a time can be streamed");
  if (stream_ && echo_) bad("stream", "echo cannot be streamed");
  fields_.accept_only("n", 1);
  fields_.accept({"model", "user", "store", "metadata", "service_tier"});
}

GenerationRequest Completions::Conversation::request_for(size_t index) const {
  GenerationRequest r = base_;
  r.prompt = prompts_[index];
  return r;
}

bool Completions::Conversation::fetch(Job& job, const Callbacks& callbacks, std::string& text,
                                      std::vector<GeneratedToken>& tokens) {
  std::unique_lock lock(job.mutex);
  while (true) {
    // The client is looked after at its own pace, whether text flows or not.
    auto now = std::chrono::steady_clock::now();
    if (callbacks.gone && !job.cancelled && now - asked_ >= kAskEvery) {
      asked_ = now;
      lock.unlock();
      bool gone = callbacks.gone();
      lock.lock();
      job.cancelled = job.cancelled || gone;
    }
    if (!job.tokens.empty() || !job.text.empty()) {
      text = std::move(job.text);
      tokens = std::move(job.tokens);
      job.text.clear();
      job.tokens.clear();
      return true;
    }
    if (job.done) return false;
    job.changed.wait_for(lock, kAskEvery);
  }
}

Json Completions::Conversation::envelope(const char* object) const {
  return {{"id", id_},
          {"object", object},
          {"created", unix_time()},
          {"model", owner_.settings_.model_name},
          {"system_fingerprint", "speech-" SPEECH_VERSION}};
}

Json Completions::Conversation::usage(int64_t prompt, int64_t cached, int64_t generated,
                                      int64_t reasoning) const {
  Json u{{"prompt_tokens", prompt},
         {"completion_tokens", generated},
         {"total_tokens", prompt + generated},
         {"prompt_tokens_details", {{"cached_tokens", cached}}}};
  if (kind_ == CompletionKind::chat) {
    u["completion_tokens_details"] = {{"reasoning_tokens", reasoning}};
  }
  return u;
}

// Tokens up to </think>, when the answer has one.
int64_t Completions::Conversation::reasoning_tokens(
    const std::vector<GeneratedToken>& tokens) const {
  for (size_t i = tokens.size(); i > 0; --i) {
    if (tokens[i - 1].bytes == "</think>") return static_cast<int64_t>(i);
  }
  return 0;
}

const GenerationResult& checked(const GenerationResult& result) {
  if (result.finish == Finish::failed) throw Error(result.error_status, {}, result.error);
  if (result.finish == Finish::cancelled) fail(Status::cancelled, "the request was cancelled");
  return result;
}

// The answer with what a forced tool call has before and after it.
std::string Completions::Conversation::whole_answer(const GenerationResult& result) const {
  if (!forced_call_) return result.text;
  return std::string(kForcedCall) + result.text + (result.finish == Finish::stop ? kForcedEnd : "");
}

Json Completions::Conversation::chat_choice(const GenerationResult& result,
                                            int64_t& reasoning) const {
  ChatOutputParser parser(has_tools_, inside_thinking_);
  std::vector<ChatDelta> deltas = parser.push(whole_answer(result));
  for (ChatDelta& d : parser.finish()) deltas.push_back(std::move(d));
  std::string content, thought;
  Json calls = Json::array();
  for (const ChatDelta& d : deltas) {
    switch (d.kind) {
      case ChatDelta::Kind::content:
        content += d.text;
        break;
      case ChatDelta::Kind::reasoning:
        thought += d.text;
        break;
      case ChatDelta::Kind::tool_call:
        calls.push_back({{"id", random_id("call_")},
                         {"type", "function"},
                         {"function", {{"name", d.name}, {"arguments", d.arguments}}}});
        break;
    }
  }
  Json message{{"role", "assistant"}, {"content", content}, {"refusal", nullptr}};
  if (!thought.empty()) message["reasoning_content"] = thought;
  const char* finish = finish_name(result.finish);
  if (!calls.empty()) {
    if (content.empty()) message["content"] = nullptr;
    message["tool_calls"] = std::move(calls);
    if (result.finish == Finish::stop) finish = "tool_calls";
  }
  reasoning = reasoning_tokens(result.tokens);
  return {{"index", 0},
          {"message", std::move(message)},
          {"logprobs",
           base_.top_log_probabilities ? chat_log_probabilities(result.tokens, model_) : Json()},
          {"finish_reason", finish}};
}

Json Completions::Conversation::text_choice(const GenerationResult& result, size_t index) const {
  std::string before = echo_ ? model_.tokenizer()->decode(prompts_[index]) : "";
  Json log_probabilities;
  if (base_.top_log_probabilities) {
    std::vector<GeneratedToken> all;
    if (echo_) all = result.prompt_tokens;
    all.insert(all.end(), result.tokens.begin(), result.tokens.end());
    log_probabilities = text_log_probabilities(all, model_, echo_, 0);
  }
  Json choice{{"text", before + result.text},
              {"index", index},
              {"logprobs", std::move(log_probabilities)},
              {"finish_reason", finish_name(result.finish)}};
  if (return_ids_) {
    choice["ids"] = Json::array();
    choice["top_ids"] = Json::array();
    for (const GeneratedToken& t : result.tokens) {
      choice["ids"].push_back(t.id);
      Json top = Json::array();
      for (auto [id, p] : t.top) top.push_back({{"id", id}, {"logprob", finite(p)}});
      choice["top_ids"].push_back(std::move(top));
    }
  }
  return choice;
}

std::string Completions::Conversation::run(const Callbacks& callbacks) {
  if (stream_) return run_stream(callbacks);
  JobList jobs;
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < prompts_.size(); ++i) requests.push_back(request_for(i));
  owner_.submit(std::move(requests), jobs);
  int64_t prompt = 0, cached = 0, generated = 0, reasoning = 0;
  Json choices = Json::array();
  for (size_t i = 0; i < jobs.size(); ++i) {
    std::string text;
    std::vector<GeneratedToken> tokens;
    while (fetch(*jobs[i], callbacks, text, tokens)) {
    }
    const GenerationResult& result = checked(jobs[i]->generation->result());
    prompt += std::ssize(prompts_[i]);
    cached += result.cached_tokens;
    generated += std::ssize(result.tokens);
    choices.push_back(kind_ == CompletionKind::chat ? chat_choice(result, reasoning)
                                                    : text_choice(result, i));
  }
  Json answer = envelope(kind_ == CompletionKind::chat ? "chat.completion" : "text_completion");
  answer["choices"] = std::move(choices);
  answer["usage"] = usage(prompt, cached, generated, reasoning);
  return answer.dump();
}

std::string Completions::Conversation::run_stream(const Callbacks& callbacks) {
  bool chat = kind_ == CompletionKind::chat;
  JobList jobs;
  owner_.submit({request_for(0)}, jobs);
  const std::shared_ptr<Job>& job = jobs[0];
  const Json head = envelope(chat ? "chat.completion.chunk" : "text_completion");
  bool open = true;
  auto send = [&](Json choices, Json used = Json()) {
    Json chunk = head;
    chunk["choices"] = std::move(choices);
    if (include_usage_) chunk["usage"] = std::move(used);
    if (!open || (callbacks.chunk && callbacks.chunk(chunk.dump()))) return;
    open = false;
    job->cancel();
  };
  auto choice = [&](Json delta, Json log_probabilities, Json finish) {
    Json c{{"index", 0}};
    if (chat) {
      c["delta"] = std::move(delta);
    } else {
      c["text"] = delta.value("content", "");
    }
    c["logprobs"] = std::move(log_probabilities);
    c["finish_reason"] = std::move(finish);
    return Json::array({std::move(c)});
  };
  if (chat) send(choice({{"role", "assistant"}, {"content", ""}}, nullptr, nullptr));

  ChatOutputParser parser(has_tools_, inside_thinking_);
  if (forced_call_) parser.push(kForcedCall);
  int calls = 0;
  int64_t offset = 0;
  auto send_deltas = [&](const std::vector<ChatDelta>& deltas, Json& log_probabilities) {
    for (const ChatDelta& d : deltas) {
      Json delta;
      switch (d.kind) {
        case ChatDelta::Kind::content:
          delta["content"] = d.text;
          break;
        case ChatDelta::Kind::reasoning:
          delta["reasoning_content"] = d.text;
          break;
        case ChatDelta::Kind::tool_call:
          delta["tool_calls"] =
              Json::array({{{"index", calls++},
                            {"id", random_id("call_")},
                            {"type", "function"},
                            {"function", {{"name", d.name}, {"arguments", d.arguments}}}}});
          break;
      }
      send(choice(std::move(delta), std::move(log_probabilities), nullptr));
      log_probabilities = nullptr;
    }
  };
  std::string text;
  std::vector<GeneratedToken> tokens;
  while (fetch(*job, callbacks, text, tokens)) {
    Json log_probabilities;
    if (base_.top_log_probabilities && !tokens.empty()) {
      if (chat) {
        log_probabilities = chat_log_probabilities(tokens, model_);
      } else {
        log_probabilities = text_log_probabilities(tokens, model_, false, offset);
        for (const auto& t : tokens) offset += code_points(replace_invalid_utf8(t.bytes));
      }
    }
    if (chat) {
      send_deltas(parser.push(text), log_probabilities);
      // Tokens whose text is held back still tell their probabilities.
      if (!log_probabilities.is_null()) {
        send(choice({{"content", ""}}, std::move(log_probabilities), nullptr));
      }
    } else if (!text.empty() || !log_probabilities.is_null()) {
      send(choice({{"content", text}}, std::move(log_probabilities), nullptr));
    }
    text.clear();
    tokens.clear();
  }
  const GenerationResult& result = checked(job->generation->result());
  Json none;
  if (forced_call_ && result.finish == Finish::stop) send_deltas(parser.push(kForcedEnd), none);
  if (chat) send_deltas(parser.finish(), none);
  const char* finish = finish_name(result.finish);
  if (calls > 0 && result.finish == Finish::stop) finish = "tool_calls";
  send(choice(Json::object(), nullptr, finish));
  if (include_usage_) {
    send(Json::array(), usage(std::ssize(prompts_[0]), result.cached_tokens,
                              std::ssize(result.tokens), reasoning_tokens(result.tokens)));
  }
  return {};
}

std::string Completions::run(CompletionKind kind, std::string_view request,
                             const Callbacks& callbacks) {
  return Conversation(*this, kind, request).run(callbacks);
}

Completions::Prompt Completions::chat_prompt(std::string_view request) const {
  Conversation c(const_cast<Completions&>(*this), CompletionKind::chat, request);
  return {c.prompt_text(), c.prompt()};
}

}  // namespace speech
