// Language models.
#include <nlohmann/json.hpp>

#include "api/handles.h"
#include "models/language_model.h"
#include "models/qwen3/rewrite.h"
#include "tasks/completions.h"
#include "tasks/evaluation.h"

using namespace speech;
using namespace speech::api;

struct speech_completions_params {
  CompletionSettings settings;
};

struct speech_completions {
  speech_completions(LanguageModel& model, CompletionSettings settings)
      : completions(model, std::move(settings)) {}
  Completions completions;
};

namespace {

LanguageModel& language_model(speech_model* model) {
  auto* language = dynamic_cast<LanguageModel*>(required(model, "model").model.get());
  if (!language) {
    fail_option(Status::unsupported, "model", "{} is no language model, but one for {}",
                model->info.info.name, task_name(model->info.info.task));
  }
  return *language;
}

void give(speech_text** out, std::string text) {
  required(out, "text") = new speech_text{std::move(text)};
}

}  // namespace

const char* speech_text_get(const speech_text* text) {
  return text ? text->text.c_str() : nullptr;
}

void speech_text_free(speech_text* text) {
  delete text;
}

speech_status speech_load_params_set_quantization(speech_load_params* params, int bits, int group) {
  return guarded([&] {
    if (!((bits >= 2 && bits <= 6) || bits == 8)) {
      fail_option(Status::out_of_range, "quantize", "{} bits; expected 2, 3, 4, 5, 6 or 8", bits);
    }
    if (group != 32 && group != 64 && group != 128) {
      fail_option(Status::out_of_range, "quantize_group", "{}; expected 32, 64 or 128", group);
    }
    required(params, "params").params.quantize_bits = bits;
    params->params.quantize_group = group;
  });
}

speech_status speech_load_params_set_lora(speech_load_params* params, const char* folder) {
  return guarded(
      [&] { required(params, "params").params.adapter = required_text(folder, "lora"); });
}

speech_status speech_load_params_set_kv_cache(speech_load_params* params, const char* type) {
  return guarded([&] {
    KvType kv = kv_type(required_text(type, "kv_cache"));
    required(params, "params").params.kv_cache = kv;
  });
}

speech_status speech_load_params_set_map_weights(speech_load_params* params, int map) {
  return guarded([&] { required(params, "params").params.map_weights = map != 0; });
}

speech_status speech_tokenize(speech_model* model, const char* text, int parse_special,
                              speech_text** json) {
  return guarded([&] {
    std::string_view given = &required(text, "text");
    auto ids = language_model(model).tokenizer()->encode(
        given, parse_special ? MatchAdded::all : MatchAdded::none);
    give(json, nlohmann::json{{"ids", ids}}.dump());
  });
}

speech_status speech_detokenize(speech_model* model, const int32_t* ids, size_t count,
                                speech_text** text) {
  return guarded([&] {
    if (count > 0) required(ids, "ids");
    const BpeTokenizer& tokenizer = *language_model(model).tokenizer();
    for (size_t i = 0; i < count; ++i) {
      if (ids[i] >= 0 && ids[i] < tokenizer.size()) continue;
      fail_option(Status::out_of_range, "ids", "token id {}; this tokenizer has 0 to {}", ids[i],
                  tokenizer.size() - 1);
    }
    give(text, tokenizer.decode({ids, count}));
  });
}

speech_completions_params* speech_completions_params_new(void) {
  return new (std::nothrow) speech_completions_params();
}

void speech_completions_params_free(speech_completions_params* params) {
  delete params;
}

speech_status speech_completions_params_set_name(speech_completions_params* params,
                                                 const char* name) {
  return guarded(
      [&] { required(params, "params").settings.model_name = required_text(name, "name"); });
}

speech_status speech_completions_params_set_limits(speech_completions_params* params, int sequences,
                                                   int queue) {
  return guarded([&] {
    if (sequences < 1 || sequences > 256) {
      fail_option(Status::out_of_range, "sequences", "{}; expected 1 to 256", sequences);
    }
    if (queue < 1) fail_option(Status::out_of_range, "queue", "{}; expected 1 or more", queue);
    required(params, "params").settings.sequences = sequences;
    params->settings.queue = static_cast<size_t>(queue);
  });
}

speech_status speech_completions_params_set_cache(speech_completions_params* params,
                                                  const char* folder) {
  return guarded([&] {
    required(params, "params").settings.cache_folder = required_text(folder, "prompt_cache_dir");
  });
}

speech_status speech_completions_params_set_grammar(speech_completions_params* params,
                                                    const char* grammar) {
  return guarded([&] {
    required(params, "params").settings.default_grammar = required_text(grammar, "grammar");
  });
}

speech_status speech_completions_new(speech_model* model, const speech_completions_params* params,
                                     speech_completions** completions) {
  return guarded([&] {
    required(completions, "completions") = nullptr;
    LanguageModel& language = language_model(model);
    CompletionSettings settings = params ? params->settings : CompletionSettings{};
    if (settings.model_name.empty()) settings.model_name = language.info().name;
    *completions = new speech_completions(language, std::move(settings));
  });
}

void speech_completions_free(speech_completions* completions) {
  delete completions;
}

speech_status speech_complete(speech_completions* completions, speech_completion_kind kind,
                              const char* request, speech_chunk_callback chunk,
                              speech_gone_callback gone, void* user, speech_text** answer) {
  return guarded([&] {
    required(answer, "answer") = nullptr;
    if (kind != SPEECH_COMPLETION_CHAT && kind != SPEECH_COMPLETION_TEXT) {
      fail_option(Status::invalid_argument, "kind", "{} is no kind of completion",
                  static_cast<int>(kind));
    }
    Completions::Callbacks callbacks;
    if (chunk) {
      callbacks.chunk = [&](std::string_view json) {
        return chunk(std::string(json).c_str(), user) == 0;
      };
    }
    if (gone) callbacks.gone = [&] { return gone(user) != 0; };
    std::string text = required(completions, "completions")
                           .completions.run(kind == SPEECH_COMPLETION_CHAT ? CompletionKind::chat
                                                                           : CompletionKind::text,
                                            required_text(request, "request"), callbacks);
    if (!text.empty()) give(answer, std::move(text));
  });
}

speech_status speech_chat_prompt(speech_completions* completions, const char* request,
                                 speech_text** json) {
  return guarded([&] {
    Completions::Prompt prompt = required(completions, "completions")
                                     .completions.chat_prompt(required_text(request, "request"));
    give(json, nlohmann::ordered_json{{"text", prompt.text}, {"ids", prompt.ids}}.dump());
  });
}

speech_status speech_completions_counts(const speech_completions* completions, speech_text** json) {
  return guarded([&] {
    CompletionCounts c = required(completions, "completions").completions.counts();
    give(json, nlohmann::ordered_json{{"requests", c.requests},
                                      {"failed", c.failed},
                                      {"cancelled", c.cancelled},
                                      {"prompt_tokens", c.prompt_tokens},
                                      {"cached_tokens", c.cached_tokens},
                                      {"generated_tokens", c.generated_tokens},
                                      {"prompt_seconds", c.prompt_seconds},
                                      {"generation_seconds", c.generation_seconds},
                                      {"running", c.running},
                                      {"waiting", c.waiting},
                                      {"grammars_compiled", c.grammars}}
                   .dump());
  });
}

speech_status speech_evaluate(speech_completions* completions, const char* fixtures,
                              const char* request, speech_progress_callback progress, void* user,
                              speech_text** report) {
  return guarded([&] {
    EvaluationSettings settings{.request = request ? request : "", .progress = {}};
    settings.progress = [&](double done) {
      if (progress && progress(done, user)) fail(Status::cancelled, "cancelled");
    };
    give(report, evaluate(required(completions, "completions").completions,
                          required_text(fixtures, "fixtures"), settings)
                     .json());
  });
}

speech_status speech_compare_evaluations(const char* baseline, const char* candidate,
                                         double max_loss, double min_score_ratio,
                                         speech_text** verdict) {
  return guarded([&] {
    auto in_range = [](const char* name, double value) {
      if (!(value >= 0)) fail_option(Status::out_of_range, name, "{}; expected 0 or more", value);
    };
    in_range("max_loss", max_loss);
    in_range("min_score_ratio", min_score_ratio);
    give(verdict, compare(Evaluation::from_json(required_text(baseline, "baseline")),
                          Evaluation::from_json(required_text(candidate, "candidate")),
                          {max_loss, min_score_ratio})
                      .json());
  });
}

speech_status speech_trace_ids(speech_trace* trace, speech_model* model, const int32_t* ids,
                               size_t count) {
  return guarded([&] {
    LanguageModel& language = language_model(model);
    if (count == 0) fail_option(Status::invalid_argument, "ids", "there are no ids");
    required(ids, "ids");
    Lease lease(*model);
    KvCache cache = language.new_cache();
    LanguageModel::Input input{&cache, {ids, count}, true};
    language.step({&input, 1}, &required(trace, "trace").trace);
  });
}

speech_status speech_lora_bake(const char* base, const char* adapter, const char* out_path,
                               speech_progress_callback progress, void* user) {
  return guarded([&] {
    qwen3::bake_lora(required_text(base, "base"), required_text(adapter, "adapter"),
                     required_text(out_path, "out_path"), [&](double done) {
                       if (progress && progress(done, user)) fail(Status::cancelled, "cancelled");
                     });
  });
}
