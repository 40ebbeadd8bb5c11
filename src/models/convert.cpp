#include "models/convert.h"

#include "base/blaming.h"
#include "base/error.h"
#include "base/file.h"
#include "formats/gguf.h"

namespace speech {
namespace {

const Family& family_of(std::span<const Family> known, const std::string& path,
                        const TensorFile& source) {
  std::string names;
  for (const Family& family : known) {
    if (!family.recognizes || !family.convert) continue;
    if (family.recognizes(path, source)) return family;
    names += (names.empty() ? "" : ", ") + std::string(family.architecture);
  }
  fail(Status::model_file,
       "{} ({}, {} tensors) is no checkpoint of a family that can be converted: {}", path,
       source.format(), source.tensors().size(), names.empty() ? "there is none" : names);
}

struct Job {
  std::shared_ptr<const TensorFile> source;
  const Family* family = nullptr;
  FilePlan plan;
};

Job prepare(std::span<const Family> known, const std::string& source_path,
            const std::string& out_path, const ConvertOptions& options) {
  check_out_path(source_path, out_path);
  Job job;
  blaming("source_path", [&] {
    job.source = open_tensor_file(source_path);
    job.family = &family_of(known, source_path, *job.source);
  });
  const auto refuse = [&](const char* option) {
    fail_option(Status::unsupported, option, "{} is a {} checkpoint, which has no choice of that",
                source_path, job.family->architecture);
  };
  if (options.extra_heads && !job.family->takes_extra_heads) refuse("extra_heads");
  if (options.rate != 0 && !job.family->takes_rate) refuse("rate");
  job.plan.path = out_path;
  job.plan.architecture = job.family->architecture;
  return job;
}

}  // namespace

FilePlan plan_convert(std::span<const Family> known, const std::string& source_path,
                      const std::string& out_path, const ConvertOptions& options) {
  struct Declared {};  // ends the converter once it has declared everything
  Job job = prepare(known, source_path, out_path, options);
  GgufWriter writer;
  writer.set_progress([](double) { throw Declared(); });
  OutputFile none;
  try {
    blaming("source_path",
            [&] { job.family->convert(source_path, *job.source, options, writer, none); });
    fail(Status::internal, "the converter of {} wrote nothing", job.family->architecture);
  } catch (const Declared&) {
  }
  describe(writer, job.plan);
  return std::move(job.plan);
}

FilePlan convert(std::span<const Family> known, const std::string& source_path,
                 const std::string& out_path, const ConvertOptions& options,
                 const Control& control) {
  Job job = prepare(known, source_path, out_path, options);
  GgufWriter writer;
  writer.set_progress([&](double done) {
    control.check();
    control.report(done);
  });
  OutputFile out = blaming("out_path", [&] { return OutputFile(out_path); });
  blaming("source_path", [&] { job.source->check_contents(); });
  job.family->convert(source_path, *job.source, options, writer, out);
  writer.finish();
  out.commit();
  describe(writer, job.plan);
  return std::move(job.plan);
}

}  // namespace speech
