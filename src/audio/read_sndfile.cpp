#include <sndfile.h>

#include <algorithm>
#include <cstring>

#include "audio/read_formats.h"
#include "base/error.h"

namespace speech::audio {
namespace {

// A mapped file as libsndfile's virtual file.
struct Source {
  std::shared_ptr<const MappedFile> file;
  ReadBehind behind;
  sf_count_t at = 0;

  explicit Source(std::shared_ptr<const MappedFile> f) : file(std::move(f)), behind(*file) {}
  sf_count_t size() const { return static_cast<sf_count_t>(file->bytes().size()); }

  static Source& of(void* user) { return *static_cast<Source*>(user); }
  static sf_count_t length(void* user) { return of(user).size(); }
  static sf_count_t tell(void* user) { return of(user).at; }
  static sf_count_t seek(sf_count_t offset, int whence, void* user) {
    Source& s = of(user);
    sf_count_t base = whence == SEEK_CUR ? s.at : whence == SEEK_END ? s.size() : 0;
    if (offset < -base || offset > s.size() - base) return -1;
    return s.at = base + offset;
  }
  static sf_count_t read(void* out, sf_count_t count, void* user) {
    Source& s = of(user);
    count = std::clamp<sf_count_t>(count, 0, s.size() - s.at);
    std::memcpy(out, s.file->bytes().data() + s.at, static_cast<size_t>(count));
    s.at += count;
    s.behind.passed(static_cast<size_t>(s.at));
    return count;
  }
  static sf_count_t write(const void*, sf_count_t, void*) { return 0; }
};

class SndfileReader : public AudioReader {
 public:
  explicit SndfileReader(std::shared_ptr<const MappedFile> file) : source_(std::move(file)) {
    SF_VIRTUAL_IO io{Source::length, Source::seek, Source::read, Source::write, Source::tell};
    SF_INFO info{};
    handle_ = sf_open_virtual(&io, SFM_READ, &info, &source_);
    if (!handle_) return;
    rate_ = info.samplerate;
    channels_ = info.channels;
    if (info.frames > 0 && info.frames < SF_COUNT_MAX) length_ = info.frames;
    // Of MP3 without a table of contents, and of Ogg, it is an estimate.
    const int type = info.format & SF_FORMAT_TYPEMASK;
    is_mp3_ = type == SF_FORMAT_MPEG;
    length_is_exact_ = length_ && !is_mp3_ && type != SF_FORMAT_OGG;
  }
  ~SndfileReader() override { sf_close(handle_); }

  bool opened() const { return handle_ && rate_ > 0 && channels_ > 0; }
  bool is_mp3() const { return is_mp3_; }

  size_t read(std::span<float> out) override {
    size_t done = 0;
    while (done < out.size()) {
      size_t frames = std::min<size_t>(out.size() - done, 4096);
      block_.resize(frames * static_cast<size_t>(channels_));
      sf_count_t got = sf_readf_float(handle_, block_.data(), static_cast<sf_count_t>(frames));
      if (sf_error(handle_) != SF_ERR_NO_ERROR) {
        fail_option(Status::invalid_argument, "audio", "{} is damaged: {}", source_.file->path(),
                    sf_strerror(handle_));
      }
      if (got <= 0) {
        if (length_is_exact_ && given_ < *length_) {
          fail_option(Status::invalid_argument, "audio",
                      "{} is cut short: {} samples announced, {} there", source_.file->path(),
                      *length_, given_);
        }
        break;
      }
      given_ += got;
      average_channels(block_, channels_, out.subspan(done, static_cast<size_t>(got)));
      done += static_cast<size_t>(got);
    }
    return done;
  }

 private:
  Source source_;
  SNDFILE* handle_ = nullptr;
  bool length_is_exact_ = false, is_mp3_ = false;
  int64_t given_ = 0;
  std::vector<float> block_;
};

}  // namespace

std::unique_ptr<AudioReader> open_sndfile(std::shared_ptr<const MappedFile> file) {
  auto reader = std::make_unique<SndfileReader>(file);
  if (!reader->opened()) return nullptr;
  // libsndfile ends an MP3 file where its estimate of the length does, which drops most of one that
  // begins loud, at a high bit rate, and has no table of contents. libav reads to the end.
  if (reader->is_mp3()) {
    if (auto whole = open_libav(file)) return whole;
  }
  return reader;
}

}  // namespace speech::audio
