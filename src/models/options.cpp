// The vocabulary of request options, and the one place where values are checked.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "models/model.h"

namespace speech {
namespace {

constexpr OptionType kString = OptionType::string, kInteger = OptionType::integer,
                     kNumber = OptionType::number, kBoolean = OptionType::boolean;

// Numbers are part of the C API: append, never reuse.
const std::array kVocabulary = {
    OptionWord{0, "voice", kString, {}},
    OptionWord{1, "language", kString, OptionValue("auto")},
    OptionWord{2, "seed", kInteger, {}},
    OptionWord{3, "speed", kNumber, OptionValue(1.0)},
    OptionWord{4, "seconds", kNumber, {}},
    OptionWord{5, "duration_scale", kNumber, OptionValue(1.0)},
    OptionWord{6, "steps", kInteger, {}},
    OptionWord{7, "max_seconds", kNumber, {}},
    OptionWord{8, "timestamps", kBoolean, OptionValue(false)},
    OptionWord{9, "prompt", kString, OptionValue("")},
    OptionWord{10, "decoding", kString, {}},
    OptionWord{11, "do_sample", kBoolean, {}},
    OptionWord{12, "top_k", kInteger, {}},
    OptionWord{13, "top_p", kNumber, {}},
    OptionWord{14, "temperature", kNumber, {}},
    OptionWord{15, "repetition_penalty", kNumber, {}},
    OptionWord{16, "code_predictor_do_sample", kBoolean, {}},
    OptionWord{17, "code_predictor_top_k", kInteger, {}},
    OptionWord{18, "code_predictor_top_p", kNumber, {}},
    OptionWord{19, "code_predictor_temperature", kNumber, {}},
    OptionWord{20, "instructions", kString, OptionValue("")},
    OptionWord{21, "cfg_scale_text", kNumber, {}},
    OptionWord{22, "cfg_scale_speaker", kNumber, {}},
    OptionWord{23, "cfg_guidance_mode", kString, {}},
    OptionWord{24, "cfg_min_t", kNumber, {}},
    OptionWord{25, "cfg_max_t", kNumber, {}},
    OptionWord{26, "truncation_factor", kNumber, {}},
    OptionWord{27, "rescale_k", kNumber, {}},
    OptionWord{28, "rescale_sigma", kNumber, {}},
    OptionWord{29, "speaker_uncond_mode", kString, {}},
    OptionWord{30, "sway_coeff", kNumber, {}},
    OptionWord{31, "keep_tail", kBoolean, {}},
    OptionWord{32, "tail_window_size", kInteger, {}},
    OptionWord{33, "tail_std_threshold", kNumber, {}},
    OptionWord{34, "tail_mean_threshold", kNumber, {}},
    OptionWord{35, "speaker_kv_scale", kNumber, {}},
    OptionWord{36, "speaker_kv_min_t", kNumber, {}},
    OptionWord{37, "speaker_kv_max_layers", kInteger, {}},
    OptionWord{38, "cfg_scale_instructions", kNumber, {}},
    OptionWord{39, "threshold", kNumber, {}},
    OptionWord{40, "min_speech_duration_ms", kInteger, {}},
    OptionWord{41, "min_silence_duration_ms", kInteger, {}},
    OptionWord{42, "speech_pad_ms", kInteger, {}},
    OptionWord{43, "max_speech_duration_s", kNumber, {}},
};

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (c == '_') c = '-';
  }
  return out;
}

std::string join(const std::vector<std::string>& words) {
  std::string out;
  for (const auto& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

const char* type_phrase(OptionType type) {
  switch (type) {
    case OptionType::string:
      return "a string";
    case OptionType::integer:
      return "an integer";
    case OptionType::number:
      return "a number";
    case OptionType::boolean:
      return "true or false";
  }
  return "";
}

bool is_type(const OptionValue& value, OptionType type) {
  return value.index() == static_cast<size_t>(type);
}

// The model's own tag for a language a caller names: the tag in any letter case, or a region or
// script of it ("ja-JP", "zh-Hant").
std::string language_tag(const ModelInfo& info, const std::string& value) {
  std::string wanted = lower(value);
  if (wanted == "auto") return "auto";
  for (std::string_view part = wanted;;) {
    for (const auto& tag : info.languages) {
      if (lower(tag) == part) return tag;
    }
    size_t dash = part.rfind('-');
    if (dash == std::string_view::npos) break;
    part = part.substr(0, dash);
  }
  fail_option(Status::out_of_range, "language", "{} does not know the language \"{}\"; it takes {}",
              info.name, value, "auto, " + join(info.languages));
}

void check_range(const OptionWord& word, const OptionSpec& spec, double value) {
  bool low = spec.minimum &&
             (spec.minimum_exclusive ? !(value > *spec.minimum) : !(value >= *spec.minimum));
  bool high = spec.maximum && !(value <= *spec.maximum);
  if (!low && !high) return;
  std::string range;
  if (spec.minimum)
    range = fmt::format("{} {}", spec.minimum_exclusive ? "above" : "at least", *spec.minimum);
  if (spec.maximum)
    range += fmt::format("{}at most {}", range.empty() ? "" : " and ", *spec.maximum);
  fail_option(Status::out_of_range, word.name, "{} is out of range: it must be {}", value, range);
}

}  // namespace

std::span<const OptionWord> option_vocabulary() {
  return kVocabulary;
}

const OptionWord* find_option(std::string_view name) {
  for (const auto& word : kVocabulary) {
    if (word.name == name) return &word;
  }
  return nullptr;
}

const OptionWord* find_option(int id) {
  for (const auto& word : kVocabulary) {
    if (word.id == id) return &word;
  }
  return nullptr;
}

std::optional<OptionValue> check_option(const ModelInfo& info, int id, OptionValue value) {
  const OptionWord* word = find_option(id);
  if (!word) fail(Status::invalid_argument, "there is no option number {}", id);
  if (!is_type(value, word->type)) {
    fail_option(Status::invalid_argument, word->name, "this option is {}", type_phrase(word->type));
  }
  const OptionSpec* spec = info.find_option(id);
  if (!spec) {
    if (id == option::language) {
      value = lower(std::get<std::string>(value));  // "AUTO" is neutral too
    }
    if (word->neutral && value == *word->neutral) return std::nullopt;
    fail_option(Status::unsupported, word->name, "{} does not take this option", info.name);
  }
  if (id == option::language && !info.languages.empty()) {
    return OptionValue(language_tag(info, std::get<std::string>(value)));
  }
  if (const auto* text = std::get_if<std::string>(&value)) {
    if (!spec->choices.empty() &&
        std::find(spec->choices.begin(), spec->choices.end(), *text) == spec->choices.end()) {
      fail_option(Status::out_of_range, word->name, "\"{}\" is not one of {}", *text,
                  join(spec->choices));
    }
  } else if (const auto* integer = std::get_if<int64_t>(&value)) {
    check_range(*word, *spec, static_cast<double>(*integer));
  } else if (const auto* number = std::get_if<double>(&value)) {
    if (!std::isfinite(*number)) {
      fail_option(Status::out_of_range, word->name, "{} is not a finite number", *number);
    }
    check_range(*word, *spec, *number);
  }
  return value;
}

void check_required(const ModelInfo& info, const Options& options) {
  for (const auto& spec : info.options) {
    if (!spec.required || options.has(spec.id)) continue;
    const OptionWord* word = find_option(spec.id);
    std::string choices = spec.choices.empty() ? "" : ": one of " + join(spec.choices);
    fail_option(Status::invalid_argument, word->name, "{} requires this option{}", info.name,
                choices);
  }
}

}  // namespace speech
