// Audio files, descriptions of files, and making model files.
#include <nlohmann/json.hpp>

#include "api/handles.h"
#include "audio/read.h"
#include "base/blaming.h"
#include "formats/describe.h"
#include "models/convert.h"
#include "models/quantize.h"
#include "models/qwen3/rewrite.h"
#include "models/registry.h"

using namespace speech;
using namespace speech::api;
using Json = nlohmann::ordered_json;

struct speech_audio {
  std::unique_ptr<AudioReader> reader;
};

struct speech_file_info {
  std::string json, text;
};

struct speech_quantize_params {
  QuantizeOptions options;
};

struct speech_convert_params {
  ConvertOptions options;
};

namespace {

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void give_plan(const FilePlan& plan, speech_file_info** out) {
  Json json{{"file", plan.path},
            {"format", "gguf"},
            {"architecture", plan.architecture},
            {"weight_type", plan.weight_type},
            {"file_bytes", plan.file_bytes},
            {"tensors", Json::array()}};
  std::string text;
  for (const auto& tensor : plan.tensors) {
    Json shape(tensor.shape);
    text += fmt::format("{:<56} {:<6} {:<20} {:>12}\n", tensor.name, tensor.type, shape.dump(),
                        tensor.bytes);
    json["tensors"].push_back({{"name", tensor.name},
                               {"type", tensor.type},
                               {"shape", std::move(shape)},
                               {"bytes", tensor.bytes}});
  }
  text +=
      fmt::format("{}: {} tensors, {} bytes\n", plan.path, plan.tensors.size(), plan.file_bytes);
  *out = new speech_file_info{dump(json), std::move(text)};
}

Control progress_control(speech_progress_callback progress, void* user) {
  Control control;
  if (progress) {
    control.progress = [progress, user](double done) { return progress(done, user) != 0; };
  }
  return control;
}

}  // namespace

speech_status speech_audio_open(const char* path, speech_audio** audio) {
  return guarded([&] {
    std::string name = required_text(path, "audio");
    required(audio, "audio");
    auto opened = std::make_unique<speech_audio>();
    opened->reader = AudioReader::open(name);
    *audio = opened.release();
  });
}

int speech_audio_rate(const speech_audio* audio) {
  return audio ? audio->reader->rate() : 0;
}

int64_t speech_audio_length(const speech_audio* audio) {
  return audio ? audio->reader->length().value_or(-1) : -1;
}

speech_status speech_audio_read(speech_audio* audio, float* samples, size_t count, size_t* read) {
  return guarded([&] {
    auto& a = required(audio, "audio");
    if (count > 0) required(samples, "samples");
    required(read, "read") = a.reader->read(std::span(samples, count));
  });
}

void speech_audio_free(speech_audio* audio) {
  delete audio;
}

speech_status speech_file_info_open(const char* path, int metadata, speech_file_info** info) {
  return guarded([&] {
    std::string name = required_text(path, "model_path");
    required(info, "info");
    auto file = blaming("model_path", [&] { return open_tensor_file(name); });
    *info = new speech_file_info{dump(describe_json(*file, metadata != 0)),
                                 describe_text(*file, metadata != 0)};
  });
}

const char* speech_file_info_json(const speech_file_info* info) {
  return info ? info->json.c_str() : nullptr;
}

const char* speech_file_info_text(const speech_file_info* info) {
  return info ? info->text.c_str() : nullptr;
}

void speech_file_info_free(speech_file_info* info) {
  delete info;
}

speech_quantize_params* speech_quantize_params_new(void) {
  return new (std::nothrow) speech_quantize_params();
}

void speech_quantize_params_free(speech_quantize_params* params) {
  delete params;
}

speech_status speech_quantize_params_set_importance(speech_quantize_params* params,
                                                    const char* path) {
  return guarded([&] {
    required(params, "params").options.importance_path = required_text(path, "importance");
  });
}

speech_status speech_quantize_params_add_calibration(speech_quantize_params* params,
                                                     const char* path) {
  return guarded([&] {
    required(params, "params").options.calibration.push_back(required_text(path, "calibrate"));
  });
}

speech_status speech_quantize_params_set_threads(speech_quantize_params* params, int threads) {
  return guarded([&] {
    if (threads < 1) {
      fail_option(Status::out_of_range, "threads", "{} threads; it must be at least 1", threads);
    }
    required(params, "params").options.threads = threads;
  });
}

speech_status speech_quantize(const char* model_path, const char* type, const char* out_path,
                              const speech_quantize_params* params,
                              speech_progress_callback progress, void* user,
                              speech_file_info** plan) {
  return guarded([&] {
    std::string source = required_text(model_path, "model_path");
    std::string target = required_text(out_path, "out_path");
    int bits = 0, group = 64;
    if (qwen3::affine_type(required_text(type, "type"), bits, group)) {
      if (plan) {
        fail_option(Status::unsupported, "type", "a plan of an affine folder is not made");
      }
      if (params && !params->options.calibration.empty()) {
        fail_option(Status::unsupported, "calibrate",
                    "affine folders hold what mlx_lm makes, which is not calibrated");
      }
      Control control = progress_control(progress, user);
      return qwen3::quantize_folder(source, target, bits, group,
                                    [&](double done) { control.report(done); });
    }
    QuantizeOptions options = params ? params->options : QuantizeOptions();
    options.type = quantize_type(required_text(type, "type"));
    if (plan) return give_plan(plan_quantize(families(), source, target, options), plan);
    quantize(families(), source, target, options, progress_control(progress, user));
  });
}

speech_convert_params* speech_convert_params_new(void) {
  return new (std::nothrow) speech_convert_params();
}

void speech_convert_params_free(speech_convert_params* params) {
  delete params;
}

speech_status speech_convert_params_set_name(speech_convert_params* params, const char* name) {
  return guarded([&] { required(params, "params").options.name = required_text(name, "name"); });
}

speech_status speech_convert_params_set_extra_heads(speech_convert_params* params,
                                                    int extra_heads) {
  return guarded([&] { required(params, "params").options.extra_heads = extra_heads != 0; });
}

speech_status speech_convert_params_set_rate(speech_convert_params* params, int rate) {
  return guarded([&] {
    if (rate < 0) fail_option(Status::out_of_range, "rate", "{} Hz is no sample rate", rate);
    required(params, "params").options.rate = rate;
  });
}

speech_status speech_convert(const char* source_path, const char* out_path,
                             const speech_convert_params* params, speech_progress_callback progress,
                             void* user, speech_file_info** plan) {
  return guarded([&] {
    std::string source = required_text(source_path, "source_path");
    std::string target = required_text(out_path, "out_path");
    ConvertOptions options = params ? params->options : ConvertOptions();
    if (plan) return give_plan(plan_convert(families(), source, target, options), plan);
    convert(families(), source, target, options, progress_control(progress, user));
  });
}
