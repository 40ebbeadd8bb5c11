// Profiles of whole models.
#include "tasks/profile.h"

#include "api/handles.h"

using namespace speech;
using namespace speech::api;

struct speech_profile_params {
  ProfileSettings settings;
};

speech_profile_params* speech_profile_params_new(void) {
  return new (std::nothrow) speech_profile_params();
}

void speech_profile_params_free(speech_profile_params* params) {
  delete params;
}

speech_status speech_profile_params_set_audio(speech_profile_params* params, const float* samples,
                                              size_t count, int rate) {
  return guarded([&] {
    ProfileSettings& settings = required(params, "params").settings;
    required(samples, "samples");
    if (count == 0) fail_option(Status::invalid_argument, "audio", "the audio has no samples");
    if (rate < 1) fail_option(Status::out_of_range, "rate", "{} Hz; it must be at least 1", rate);
    settings.audio.assign(samples, samples + count);
    settings.rate = rate;
  });
}

speech_status speech_profile_params_set_seconds(speech_profile_params* params, double seconds) {
  return guarded([&] { required(params, "params").settings.seconds = seconds; });
}

speech_status speech_profile_params_set_tokens(speech_profile_params* params, int prompt,
                                               int tokens, int sequences) {
  return guarded([&] {
    ProfileSettings& settings = required(params, "params").settings;
    settings.prompt_tokens = prompt;
    settings.tokens = tokens;
    settings.sequences = sequences;
  });
}

speech_status speech_profile_params_set_runs(speech_profile_params* params, int runs) {
  return guarded([&] { required(params, "params").settings.runs = runs; });
}

speech_status speech_profile(const char* path, const speech_load_params* load_params,
                             const speech_profile_params* params, speech_text** json) {
  return guarded([&] {
    std::string name = required_text(path, "model_path");
    required(json, "json");
    const ProfileSettings settings = params ? params->settings : ProfileSettings();
    *json =
        new speech_text{profile_json(profile_model(name, checked_params(load_params), settings))};
  });
}
