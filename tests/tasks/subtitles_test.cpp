#include "tasks/subtitles.h"

#include <gtest/gtest.h>

namespace speech {
namespace {

const std::vector<Segment> kSegments = {
    {0.5, 1.9996, " Hello, <you> & me."}, {2, 3, "  "}, {3661.25, 3662, "Next\nline"}};

TEST(Subtitles, Srt) {
  EXPECT_EQ(to_srt(kSegments),
            "1\n00:00:00,500 --> 00:00:02,000\nHello, <you> & me.\n\n"
            "2\n01:01:01,250 --> 01:01:02,000\nNext line\n\n");
  EXPECT_EQ(to_srt({}), "");
}

TEST(Subtitles, Vtt) {
  EXPECT_EQ(to_vtt(kSegments),
            "WEBVTT\n\n00:00:00.500 --> 00:00:02.000\nHello, &lt;you&gt; &amp; me.\n\n"
            "01:01:01.250 --> 01:01:02.000\nNext line\n\n");
}

TEST(Subtitles, Tsv) {
  EXPECT_EQ(to_tsv(kSegments),
            "start\tend\ttext\n500\t2000\tHello, <you> & me.\n2000\t3000\t\n"
            "3661250\t3662000\tNext line\n");
}

}  // namespace
}  // namespace speech
