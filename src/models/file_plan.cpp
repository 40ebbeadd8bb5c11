#include "models/file_plan.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "formats/gguf.h"

namespace speech {

namespace fs = std::filesystem;

void describe(const GgufWriter& writer, FilePlan& plan) {
  std::map<std::string_view, uint64_t> bytes_of_type;
  for (const auto& tensor : writer.tensors()) {
    plan.tensors.push_back(
        {tensor.name, tensor.shape, std::string(tensor.type->name), tensor.bytes});
    bytes_of_type[tensor.type->name] += tensor.bytes;
  }
  plan.file_bytes = writer.file_size();
  if (!plan.weight_type.empty() || bytes_of_type.empty()) return;
  auto most = std::max_element(bytes_of_type.begin(), bytes_of_type.end(),
                               [](auto& a, auto& b) { return a.second < b.second; });
  plan.weight_type = most->first;
}

void check_out_path(const std::string& source, const std::string& out) {
  auto extension = fs::path(out).extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  if (extension != ".gguf") {
    fail_option(Status::invalid_argument, "out_path",
                "{} does not end in .gguf, as the name of a model file must", out);
  }
  std::error_code error;
  auto status = fs::status(out, error);
  if (!fs::exists(status)) return;
  if (!fs::is_regular_file(status)) {
    fail_option(Status::invalid_argument, "out_path", "{} is not a regular file", out);
  }
  if (fs::equivalent(source, out, error)) {
    fail_option(Status::invalid_argument, "out_path", "{} is the input itself", out);
  }
}

}  // namespace speech
