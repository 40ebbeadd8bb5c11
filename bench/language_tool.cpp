// Measures a language model.
//
//   language_tool MODEL [--threads N] [--prompt N] [--tokens N] [--clients N] [--quantize BITS]
//       Tokens per second of a prompt in one pass, of one sequence, and of several in one batch;
//       the bytes of weights a token reads against the read bandwidth measured in the same process;
//       load time and peak memory. Ids are random: the speed does not depend on them.
#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>

#include "base/error.h"
#include "limits.h"
#include "models/language_model.h"
#include "models/registry.h"

namespace speech {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double peak_mb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1000.0;
}

struct Settings {
  std::string path;
  int threads = 2, prompt = 512, tokens = 48, clients = 4, quantize = 0;
};

std::vector<int32_t> random_ids(int count, int64_t vocabulary) {
  std::minstd_rand random(1);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary));
  return ids;
}

// Seconds of `steps` steps of `count` sequences behind a prompt of 16.
double decode(LanguageModel& model, int count, int steps) {
  std::vector<int32_t> ids = random_ids(16, model.vocabulary());
  std::vector<KvCache> caches;
  for (int i = 0; i < count; ++i) caches.push_back(model.new_cache());
  std::vector<LanguageModel::Input> inputs;
  for (KvCache& cache : caches) inputs.push_back({&cache, ids});
  model.step(inputs);
  int32_t next = 7;
  for (auto& input : inputs) input.ids = {&next, 1};
  double begin = now();
  for (int i = 0; i < steps; ++i) {
    next = (next * 31 + 11) % 1000;
    model.step(inputs);
  }
  return now() - begin;
}

void measure(const Settings& s) {
  double begin = now();
  LoadParams params{.threads = s.threads, .quantize_bits = s.quantize};
  std::unique_ptr<Model> loaded = load_model(s.path, params);
  auto* model = dynamic_cast<LanguageModel*>(loaded.get());
  if (!model) fail(Status::unsupported, "{} is no language model", s.path);
  double load = now() - begin;
  double gigabytes = static_cast<double>(model->info().weight_bytes) / 1e9;

  decode(*model, 1, 2);  // pages of the file
  double one = decode(*model, 1, s.tokens) / s.tokens;
  double many = decode(*model, s.clients, s.tokens) / s.tokens;
  std::vector<int32_t> ids = random_ids(s.prompt, model->vocabulary());
  double prompt = 1e9;
  for (int run = 0; run < 2; ++run) {
    KvCache cache = model->new_cache();
    LanguageModel::Input input{&cache, ids};
    begin = now();
    model->step({&input, 1});
    prompt = std::min(prompt, now() - begin);
  }
  double peak = peak_mb();
  double read = bench::limits(s.threads).read_bytes / 1e9;
  fmt::print("{} {} threads={} weights={:.3f} GB load={:.3f} s peak={:.0f} MB\n",
             model->info().name, model->info().weight_type, s.threads, gigabytes, load, peak);
  fmt::print("prompt of {}: {:.1f} tok/s\n", s.prompt, s.prompt / prompt);
  fmt::print("1 sequence: {:.1f} tok/s, {:.1f} GB/s of weights, {:.2f} of the read bandwidth\n",
             1 / one, gigabytes / one, gigabytes / one / read);
  fmt::print("{} sequences: {:.1f} tok/s, {:.2f} times one\n", s.clients, s.clients / many,
             s.clients * one / many);
}

}  // namespace
}  // namespace speech

int main(int argc, char** argv) {
  speech::Settings s;
  for (int i = 1; i < argc; ++i) {
    auto number = [&](const char* name, int& value) {
      bool here = std::strcmp(argv[i], name) == 0 && i + 1 < argc;
      if (here) value = std::atoi(argv[++i]);
      return here;
    };
    if (number("--threads", s.threads) || number("--prompt", s.prompt) ||
        number("--tokens", s.tokens) || number("--clients", s.clients) ||
        number("--quantize", s.quantize)) {
      continue;
    }
    s.path = argv[i];
  }
  if (s.path.empty()) {
    fmt::print(stderr,
               "usage: language_tool MODEL [--threads N] [--prompt N] [--tokens N] "
               "[--clients N] [--quantize BITS]\n");
    return 2;
  }
  try {
    speech::measure(s);
  } catch (const speech::Error& error) {
    fmt::print(stderr, "language_tool: {}\n", error.what());
    return 1;
  }
}
