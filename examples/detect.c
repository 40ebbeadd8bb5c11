/* Prints the stretches of speech in a recording: detect MODEL.gguf AUDIO */
#include <speech.h>
#include <stdio.h>

static int fail(speech_status status) {
  fprintf(stderr, "%s: %s\n", speech_status_name(status), speech_last_error());
  return 1;
}

int main(int argc, char** argv) {
  speech_model* model = NULL;
  speech_request* request = NULL;
  speech_audio* audio = NULL;
  speech_detection* detection = NULL;
  speech_status status = SPEECH_OK;
  float piece[4096];
  size_t read = 1, i;
  double start, end;

  if (argc != 3) return fprintf(stderr, "usage: %s MODEL.gguf AUDIO\n", argv[0]), 2;
  if ((status = speech_model_load(argv[1], NULL, &model)) ||
      (status = speech_request_new(model, &request)) ||
      (status = speech_audio_open(argv[2], &audio)) ||
      (status = speech_detection_start(request, speech_audio_rate(audio), &detection)))
    return fail(status);

  while (!status && read > 0) {
    status = speech_audio_read(audio, piece, sizeof piece / sizeof *piece, &read);
    if (!status) status = speech_detection_push(detection, piece, read);
  }
  if (!status) status = speech_detection_end(detection);
  if (status) return fail(status);

  for (i = 0; i < speech_detection_region_count(detection); ++i)
    if (!speech_detection_region(detection, i, &start, &end)) printf("%.3f\t%.3f\n", start, end);

  speech_detection_free(detection);
  speech_audio_free(audio);
  speech_request_free(request);
  speech_model_free(model);
  return 0;
}
