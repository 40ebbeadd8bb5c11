// Whatever libavformat and libavcodec know: M4A, WebM, AMR, the sound of a film.
#include "audio/read_formats.h"

#ifdef SPEECH_WITH_LIBAV

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/channel_layout.h>
#include <libswresample/swresample.h>
}

#include <dlfcn.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace speech::audio {
namespace {

// The libraries are opened when the first file needs them: they and what they bring take 27 MB and
// a hundred loads at every start of a program otherwise.
// The fill of these lists would change from run to run.
// clang-format off
#define SPEECH_AVUTIL(X) \
  X(av_freep) X(av_strerror) X(av_log_get_level) X(av_log_set_level) X(av_malloc) X(av_rescale) \
  X(av_frame_alloc) X(av_frame_free)
#define SPEECH_AVCODEC(X) \
  X(av_packet_alloc) X(av_packet_free) X(av_packet_unref) X(avcodec_alloc_context3) \
  X(avcodec_free_context) X(avcodec_parameters_to_context) X(avcodec_open2) \
  X(avcodec_send_packet) X(avcodec_receive_frame)
#define SPEECH_AVFORMAT(X) \
  X(avio_alloc_context) X(avio_context_free) X(avformat_alloc_context) X(avformat_open_input) \
  X(avformat_close_input) X(avformat_find_stream_info) X(av_find_best_stream) X(av_read_frame)
#define SPEECH_SWRESAMPLE(X) \
  X(swr_alloc_set_opts2) X(swr_init) X(swr_convert) X(swr_free)
// clang-format on

struct Libav {
#define SPEECH_POINTER(name) decltype(&::name) name = nullptr;
  SPEECH_AVUTIL(SPEECH_POINTER)
  SPEECH_AVCODEC(SPEECH_POINTER)
  SPEECH_AVFORMAT(SPEECH_POINTER)
  SPEECH_SWRESAMPLE(SPEECH_POINTER)
#undef SPEECH_POINTER
  bool complete = true;

  Libav() {
    // Of the version that the declarations are of; another one may have other structures.
    void* library = nullptr;
    const auto open = [&](const char* name, int major) {
      const std::string file = std::string("lib") + name + ".so." + std::to_string(major);
      library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    };
    const auto find = [&](const char* name) {
      void* symbol = library ? dlsym(library, name) : nullptr;
      complete = complete && symbol;
      return symbol;
    };
#define SPEECH_FIND(name) name = reinterpret_cast<decltype(name)>(find(#name));
    open("avutil", LIBAVUTIL_VERSION_MAJOR);
    SPEECH_AVUTIL(SPEECH_FIND)
    open("avcodec", LIBAVCODEC_VERSION_MAJOR);
    SPEECH_AVCODEC(SPEECH_FIND)
    open("avformat", LIBAVFORMAT_VERSION_MAJOR);
    SPEECH_AVFORMAT(SPEECH_FIND)
    open("swresample", LIBSWRESAMPLE_VERSION_MAJOR);
    SPEECH_SWRESAMPLE(SPEECH_FIND)
#undef SPEECH_FIND
  }
};

const Libav& libav() {
  static const Libav libraries;
  return libraries;
}

template <auto free>
struct Freed {
  template <typename T>
  void operator()(T* pointer) const {
    (libav().*free)(&pointer);
  }
};
struct FreedIo {
  void operator()(AVIOContext* io) const {
    libav().av_freep(&io->buffer);
    libav().avio_context_free(&io);
  }
};

std::string reason(int error) {
  char text[AV_ERROR_MAX_STRING_SIZE] = {};
  libav().av_strerror(error, text, sizeof text);
  return text;
}

class LibavReader : public AudioReader {
 public:
  explicit LibavReader(std::shared_ptr<const MappedFile> file)
      : file_(std::move(file)), behind_(*file_) {}

  // False if libav does not know the file or finds no sound in it.
  bool open() {
    if (libav().av_log_get_level() == AV_LOG_INFO)
      libav().av_log_set_level(AV_LOG_QUIET);  // we never print
    constexpr int kBuffer = 1 << 16;
    auto* buffer = static_cast<unsigned char*>(libav().av_malloc(kBuffer));
    if (!buffer) fail(Status::out_of_memory, "no memory for reading {}", file_->path());
    io_.reset(
        libav().avio_alloc_context(buffer, kBuffer, 0, this, read_bytes, nullptr, seek_bytes));
    AVFormatContext* format = libav().avformat_alloc_context();
    packet_.reset(libav().av_packet_alloc());
    frame_.reset(libav().av_frame_alloc());
    if (!io_ || !format || !packet_ || !frame_) {
      fail(Status::out_of_memory, "no memory for reading {}", file_->path());
    }
    format->pb = io_.get();
    if (libav().avformat_open_input(&format, nullptr, nullptr, nullptr) < 0)
      return false;  // frees format
    format_.reset(format);
    if (libav().avformat_find_stream_info(format, nullptr) < 0) return false;
    const AVCodec* codec = nullptr;
    stream_ = libav().av_find_best_stream(format, AVMEDIA_TYPE_AUDIO, -1, -1, &codec, 0);
    if (stream_ < 0 || !codec) return false;
    codec_.reset(libav().avcodec_alloc_context3(codec));
    const AVStream& stream = *format->streams[stream_];
    if (libav().avcodec_parameters_to_context(codec_.get(), stream.codecpar) < 0) return false;
    codec_->pkt_timebase = stream.time_base;  // so that the encoder's priming is cut off
    if (libav().avcodec_open2(codec_.get(), codec, nullptr) < 0) return false;
    rate_ = codec_->sample_rate;
    channels_ = codec_->ch_layout.nb_channels;
    if (rate_ <= 0 || channels_ <= 0) return false;
    if (format->duration > 0) {
      length_ = libav().av_rescale(format->duration, rate_, AV_TIME_BASE);
    }
    return true;
  }

  size_t read(std::span<float> out) override {
    size_t done = 0;
    while (done < out.size()) {
      if (taken_ == mono_.size() && !decode()) break;
      size_t count = std::min(out.size() - done, mono_.size() - taken_);
      std::copy_n(mono_.begin() + static_cast<std::ptrdiff_t>(taken_), count, out.begin() + done);
      taken_ += count;
      done += count;
    }
    return done;
  }

 private:
  static int read_bytes(void* self, uint8_t* out, int size) {
    auto& r = *static_cast<LibavReader*>(self);
    auto bytes = r.file_->bytes();
    size_t count = std::min<size_t>(static_cast<size_t>(size), bytes.size() - r.at_);
    if (count == 0) return AVERROR_EOF;
    std::memcpy(out, bytes.data() + r.at_, count);
    r.at_ += count;
    r.behind_.passed(r.at_);
    return static_cast<int>(count);
  }
  static int64_t seek_bytes(void* self, int64_t offset, int whence) {
    auto& r = *static_cast<LibavReader*>(self);
    auto size = static_cast<int64_t>(r.file_->bytes().size());
    if (whence == AVSEEK_SIZE) return size;
    whence &= ~AVSEEK_FORCE;
    int64_t base = whence == SEEK_CUR ? static_cast<int64_t>(r.at_) : whence == SEEK_END ? size : 0;
    if (offset < -base || offset > size - base) return AVERROR(EINVAL);
    r.at_ = static_cast<size_t>(base + offset);
    return base + offset;
  }

  [[noreturn]] void damaged(int error) const {
    fail_option(Status::invalid_argument, "audio", "{} is damaged: {}", file_->path(),
                reason(error));
  }

  // Puts the next frame's samples into mono_; false at the end.
  bool decode() {
    for (;;) {
      int got = libav().avcodec_receive_frame(codec_.get(), frame_.get());
      if (got == 0) {
        convert();
        if (!mono_.empty()) return true;
        continue;
      }
      if (got == AVERROR_EOF) return false;
      if (got != AVERROR(EAGAIN)) damaged(got);
      next_packet();
    }
  }

  void next_packet() {
    for (;;) {
      int got = libav().av_read_frame(format_.get(), packet_.get());
      if (got == AVERROR_EOF) {
        libav().avcodec_send_packet(codec_.get(),
                                    nullptr);  // the decoder gives what it still holds
        return;
      }
      if (got < 0) damaged(got);
      bool ours = packet_->stream_index == stream_;
      int sent = ours ? libav().avcodec_send_packet(codec_.get(), packet_.get()) : 0;
      libav().av_packet_unref(packet_.get());
      if (sent < 0) damaged(sent);
      if (ours) return;
    }
  }

  void convert() {
    AVFrame& frame = *frame_;
    if (frame.sample_rate != rate_ || frame.ch_layout.nb_channels != channels_) {
      fail_option(Status::unsupported, "audio",
                  "{} changes its sample rate or channels midway; convert it with: ffmpeg -i {} "
                  "OUT.wav",
                  file_->path(), file_->path());
    }
    if (!converter_ || frame.format != sample_format_) {
      SwrContext* made = nullptr;
      int error = libav().swr_alloc_set_opts2(
          &made, &frame.ch_layout, AV_SAMPLE_FMT_FLT, rate_, &frame.ch_layout,
          static_cast<AVSampleFormat>(frame.format), rate_, 0, nullptr);
      converter_.reset(made);
      if (error >= 0) error = libav().swr_init(made);
      if (error < 0) damaged(error);
      sample_format_ = frame.format;
    }
    auto frames = static_cast<size_t>(frame.nb_samples);
    interleaved_.resize(frames * static_cast<size_t>(channels_));
    auto* out = reinterpret_cast<uint8_t*>(interleaved_.data());
    int got =
        libav().swr_convert(converter_.get(), &out, frame.nb_samples,
                            const_cast<const uint8_t**>(frame.extended_data), frame.nb_samples);
    if (got < 0) damaged(got);
    mono_.resize(static_cast<size_t>(got));
    taken_ = 0;
    average_channels(interleaved_, channels_, mono_);
  }

  std::shared_ptr<const MappedFile> file_;
  ReadBehind behind_;
  size_t at_ = 0;
  std::unique_ptr<AVIOContext, FreedIo> io_;
  std::unique_ptr<AVFormatContext, Freed<&Libav::avformat_close_input>> format_;
  std::unique_ptr<AVCodecContext, Freed<&Libav::avcodec_free_context>> codec_;
  std::unique_ptr<AVPacket, Freed<&Libav::av_packet_free>> packet_;
  std::unique_ptr<AVFrame, Freed<&Libav::av_frame_free>> frame_;
  std::unique_ptr<SwrContext, Freed<&Libav::swr_free>> converter_;
  int stream_ = -1, sample_format_ = -1;
  std::vector<float> interleaved_, mono_;
  size_t taken_ = 0;
};

}  // namespace

std::unique_ptr<AudioReader> open_libav(std::shared_ptr<const MappedFile> file) {
  if (!libav().complete) return nullptr;
  auto reader = std::make_unique<LibavReader>(std::move(file));
  if (!reader->open()) return nullptr;
  return reader;
}

}  // namespace speech::audio

#else

namespace speech::audio {

std::unique_ptr<AudioReader> open_libav(std::shared_ptr<const MappedFile>) {
  return nullptr;
}

}  // namespace speech::audio

#endif
