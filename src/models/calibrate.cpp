#include "models/calibrate.h"

#include <algorithm>
#include <cmath>

#include "audio/read.h"
#include "base/blaming.h"
#include "base/error.h"
#include "base/file.h"
#include "compute/observed_backend.h"
#include "formats/gguf.h"
#include "models/language_model.h"

namespace speech {
namespace {

// Positions of a text that a language model sees together.
constexpr size_t kTextTokens = 512;

// What `work` on an input gives; its errors name the input.
template <typename Work>
decltype(auto) on_input(const std::string& path, Work&& work) {
  try {
    return work();
  } catch (const Error& error) {
    if (!error.option().empty() && error.option() != "audio") throw;
    if (error.status() == Status::cancelled) throw;
    std::string text = error.what();
    if (text.find(path) == std::string::npos) text = path + ": " + text;
    throw Error(error.status(), "calibrate", text);
  }
}

std::string read_text(const std::string& path) {
  return on_input(path, [&] {
    std::string text = read_text_file(path);
    if (text.empty()) fail(Status::invalid_argument, "{} is empty", path);
    return text;
  });
}

}  // namespace

void Calibration::check(Task task, const std::vector<std::string>& inputs) {
  if (task != Task::recognition && task != Task::language) {
    fail_option(Status::unsupported, "calibrate", "models for {} cannot be calibrated",
                task_name(task));
  }
  for (const std::string& path : inputs) {
    if (task == Task::language) {
      read_text(path);
    } else {
      on_input(path, [&] { AudioReader::open(path); });
    }
  }
}

Calibration::Calibration(const Family& family, std::shared_ptr<const GgufFile> file,
                         std::vector<std::string> inputs, int threads)
    : file_(std::move(file)), inputs_(std::move(inputs)) {
  for (const TensorEntry& t : file_->tensors()) places_[t.bytes.data()] = &t;
  LoadParams params;
  params.threads = threads;
  params.wrap_backend = [this](std::unique_ptr<Backend> backend) {
    backend_ = backend.get();
    return make_observed_backend(
        std::move(backend),
        [this](Backend& inner, const Tensor& x, const Weight& w) { watch(inner, x, w); });
  };
  model_ = family.load(file_, params);
  check(model_->info().task, inputs_);
}

void Calibration::watch(Backend& backend, const Tensor& x, const Weight& w) {
  if (!wanted_) return;
  // The tensor that begins at or before the weight, which may be some of its rows.
  auto place = places_.upper_bound(w.data);
  if (place == places_.begin()) return;
  const TensorEntry& t = *std::prev(place)->second;
  if (w.data >= t.bytes.data() + t.bytes.size() || !wanted_->contains(t.name)) return;
  found_.try_emplace(t.name, w.cols).first->second.add(backend, x);
}

void Calibration::run(const std::string& input, const Control& control) {
  if (auto* recognizer = dynamic_cast<Recognizer*>(model_.get())) {
    const AudioFile audio = read_audio(input);
    const AudioView view{audio.samples, audio.rate};
    recognizer->transcribe({&view, 1}, {}, control);
    // A CTC head beside the default decoder is reached by its own decoding alone.
    const OptionSpec* decoding = recognizer->info().find_option(option::decoding);
    if (decoding && std::ranges::count(decoding->choices, "ctc") > 0) {
      Options options;
      options.set(option::decoding, std::string("ctc"));
      recognizer->transcribe({&view, 1}, options, control);
    }
  } else if (auto* language = dynamic_cast<LanguageModel*>(model_.get())) {
    const std::vector<int32_t> ids = language->tokenizer()->encode(read_text(input));
    const size_t most = std::min(kTextTokens, static_cast<size_t>(language->max_positions()));
    for (size_t begin = 0; begin < ids.size(); begin += most) {
      control.check();
      KvCache cache = language->new_cache();
      const LanguageModel::Input text{
          .cache = &cache,
          .ids = std::span(ids).subspan(begin, std::min(most, ids.size() - begin)),
          .all_logits = true};
      language->step({&text, 1});
    }
  }
}

std::map<std::string, InputStatistics> Calibration::collect(const std::set<std::string>& tensors,
                                                            const Control& control) {
  wanted_ = &tensors;
  found_.clear();
  Control quiet;
  quiet.cancel = control.cancel;
  for (const std::string& input : inputs_) {
    control.check();
    on_input(input, [&] { run(input, quiet); });
  }
  wanted_ = nullptr;
  for (auto& [name, statistics] : found_) {
    statistics.finish(*backend_);
    const auto values = statistics.gram();
    if (!std::ranges::all_of(values, [](float v) { return std::isfinite(v); })) {
      fail(Status::model_file, "{}: what tensor {} is multiplied with is not finite", file_->path(),
           name);
    }
  }
  return std::exchange(found_, {});
}

}  // namespace speech
