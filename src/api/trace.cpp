// Traces of stages, written as safetensors.
#include <bit>
#include <set>

#include "api/handles.h"
#include "base/blaming.h"
#include "base/file.h"
#include "formats/safetensors.h"

using namespace speech;
using namespace speech::api;

static_assert(std::endian::native == std::endian::little, "values are written as they lie");

speech_status speech_trace_new(speech_trace** trace) {
  return guarded([&] { required(trace, "trace") = new speech_trace(); });
}

speech_status speech_trace_set_prefix(speech_trace* trace, const char* prefix) {
  return guarded(
      [&] { required(trace, "trace").trace.set_prefix(std::string(&required(prefix, "prefix"))); });
}

speech_status speech_trace_set_chunks(speech_trace* trace, const int64_t* chunks, size_t count) {
  return guarded([&] {
    if (count > 0) required(chunks, "chunks");
    required(trace, "trace").trace.set_rows({chunks, chunks + count});
  });
}

speech_status speech_trace_set_channel_step(speech_trace* trace, int step) {
  return guarded([&] {
    if (step < 1) fail_option(Status::out_of_range, "step", "{}; it must be at least 1", step);
    required(trace, "trace").trace.set_channel_step(step);
  });
}

size_t speech_trace_count(const speech_trace* trace) {
  return trace ? trace->trace.entries().size() : 0;
}

speech_status speech_trace_write(const speech_trace* trace, const char* path) {
  return guarded([&] {
    const auto& entries = required(trace, "trace").trace.entries();
    std::string name = required_text(path, "out_path");
    SafetensorsWriter writer;
    for (const auto& entry : entries) {
      writer.add_tensor(entry.name, entry.ints.empty() ? DType::f32 : DType::i32, entry.shape);
    }
    OutputFile out = blaming("out_path", [&] { return OutputFile(name); });
    writer.begin(out);
    for (const auto& entry : entries) {
      writer.write(entry.ints.empty() ? std::as_bytes(std::span(entry.floats))
                                      : std::as_bytes(std::span(entry.ints)));
    }
    writer.finish();
    out.commit();
  });
}

void speech_trace_free(speech_trace* trace) {
  delete trace;
}
