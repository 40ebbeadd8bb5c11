// Loading models.
#include "api/handles.h"
#include "models/registry.h"

using namespace speech;
using namespace speech::api;

speech_model::speech_model(std::unique_ptr<Model> loaded)
    : model(std::move(loaded)), info(model->info(), model->device(), model->threads()) {}

namespace speech::api {
namespace {

// The device of a load; a GPU that is not there is an error, never the CPU instead.
std::string checked_device(std::string name) {
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  if (name == "auto" || name == "cpu") return name;
  fail_option(Status::device, "device",
              "there is no device \"{}\" here; the devices are: auto, cpu", name);
}

}  // namespace

LoadParams checked_params(const speech_load_params* params) {
  LoadParams load = params ? params->params : LoadParams();
  load.device = checked_device(load.device);
  return load;
}

Lease::Lease(speech_model& model) : model_(model) {
  if (model.owner.load() == std::this_thread::get_id()) {
    fail(Status::invalid_argument, "a callback used the model it was called for");
  }
  model.mutex.lock();
  model.owner = std::this_thread::get_id();
}

Lease::~Lease() {
  model_.owner = std::thread::id();
  model_.mutex.unlock();
}

}  // namespace speech::api

namespace {

void warm_up(Model& model) {
  std::vector<float> silence(static_cast<size_t>(model.info().sample_rate), 0.0f);
  AudioView audio{silence, model.info().sample_rate};
  if (auto* detector = dynamic_cast<Detector*>(&model)) detector->detect(audio, {}, {});
  if (auto* recognizer = dynamic_cast<Recognizer*>(&model)) {
    recognizer->transcribe(std::span(&audio, 1), {}, {});
  }
}

}  // namespace

speech_load_params* speech_load_params_new(void) {
  return new (std::nothrow) speech_load_params();
}

void speech_load_params_free(speech_load_params* params) {
  delete params;
}

speech_status speech_load_params_set_device(speech_load_params* params, const char* device) {
  return guarded(
      [&] { required(params, "params").params.device = required_text(device, "device"); });
}

speech_status speech_load_params_set_threads(speech_load_params* params, int threads) {
  return guarded([&] {
    if (threads < 1) {
      fail_option(Status::out_of_range, "threads", "{} threads; it must be at least 1", threads);
    }
    required(params, "params").params.threads = threads;
  });
}

speech_status speech_load_params_set_exact(speech_load_params* params, int exact) {
  return guarded([&] {
    required(params, "params").params.precision = exact ? Precision::exact : Precision::fast;
  });
}

speech_status speech_load_params_set_warmup(speech_load_params* params, int warmup) {
  return guarded([&] { required(params, "params").warmup = warmup != 0; });
}

speech_status speech_model_load(const char* path, const speech_load_params* params,
                                speech_model** model) {
  return guarded([&] {
    std::string name = required_text(path, "model_path");
    required(model, "model");
    auto loaded = std::make_unique<speech_model>(load_model(name, checked_params(params)));
    if (params && params->warmup) warm_up(*loaded->model);
    *model = loaded.release();
  });
}

void speech_model_free(speech_model* model) {
  delete model;
}

speech_status speech_model_get_info(const speech_model* model, const speech_model_info** info) {
  return guarded([&] { required(info, "info") = &required(model, "model").info; });
}
