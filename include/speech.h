/* speech: speech recognition, voice activity detection and small language models on CPUs.
 *
 * The C API, in C99. Rules that hold for every function:
 *
 *  - All strings are UTF-8 and end in a zero byte, paths too.
 *  - A function that can fail returns a speech_status; what went wrong is then in
 *    speech_last_error() and speech_last_error_option() of the calling thread. Out-parameters are
 *    written on SPEECH_OK only. A null pointer where a value is needed is SPEECH_INVALID_ARGUMENT;
 *    getters of a null handle give 0 or NULL.
 *  - Nothing the caller passes is kept after the call returns, except callbacks and their `user`.
 *  - An object is freed by the free function of its type and by nothing else; freeing NULL does
 *    nothing. Requests, detections and live transcriptions are freed before their models.
 *  - A string or handle that a getter returns belongs to the object it came from and lives as long.
 *    Names of statuses, options, stops, tasks and devices, and the version, live for ever.
 *  - A model runs one request at a time: threads that use one model wait for each other. Models are
 *    independent. A request belongs to one thread at a time, except speech_request_cancel().
 *    Information objects may be read from any thread.
 *  - Audio is mono f32, nominally in [-1, 1], at any rate in Hz; the library resamples it to the
 *    model's rate. Times are seconds from the first sample.
 *  - Callbacks run on the calling thread. They must not call functions on the same model.
 */
#ifndef SPEECH_H
#define SPEECH_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32) && defined(SPEECH_SHARED)
#ifdef SPEECH_BUILD
#define SPEECH_API __declspec(dllexport)
#else
#define SPEECH_API __declspec(dllimport)
#endif
#elif defined(__GNUC__)
#define SPEECH_API __attribute__((visibility("default")))
#else
#define SPEECH_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- version ---- */

/* The minor number rises when a function, option or enum value is added, the major one when a
 * caller must change. A program written for M.m runs with a library M.n where n >= m. */
#define SPEECH_API_VERSION_MAJOR 1
#define SPEECH_API_VERSION_MINOR 0

SPEECH_API int speech_api_version_major(void);
SPEECH_API int speech_api_version_minor(void);
SPEECH_API const char* speech_version(void); /* release of the library: "0.1.0" */

/* ---- errors ---- */

typedef enum speech_status {
  SPEECH_OK = 0,
  SPEECH_CANCELLED = 1,         /* by speech_request_cancel() or a callback */
  SPEECH_INVALID_ARGUMENT = -1, /* null, empty, wrong type, missing, call out of order */
  SPEECH_UNSUPPORTED = -2,      /* an option or a task that this model does not have */
  SPEECH_OUT_OF_RANGE = -3,     /* outside the range or the choices */
  SPEECH_MODEL_FILE = -4,       /* a file that is not what it should be */
  SPEECH_DEVICE = -5,
  SPEECH_OUT_OF_MEMORY = -6,
  SPEECH_IO = -7,
  SPEECH_INTERNAL = -8,
  SPEECH_BUSY = -9 /* as many requests as may wait are waiting */
} speech_status;

SPEECH_API const char* speech_status_name(speech_status status); /* "out_of_range" */

/* Of the last call on this thread that failed: the message, never NULL, and the input at fault (an
 * option's name, "audio", "device", "model_path", "type", "out_path", ...) or NULL. Valid until the
 * next call on this thread. */
SPEECH_API const char* speech_last_error(void);
SPEECH_API const char* speech_last_error_option(void);

/* ---- log ---- */

typedef enum speech_log_level {
  SPEECH_LOG_DEBUG = 0,
  SPEECH_LOG_INFO = 1,
  SPEECH_LOG_WARN = 2,
  SPEECH_LOG_ERROR = 3
} speech_log_level;

typedef void (*speech_log_callback)(speech_log_level level, const char* text, void* user);

/* Takes every line of this process's log, possibly from several threads at once. NULL restores the
 * initial state: warnings and errors go to stderr, the rest nowhere. */
SPEECH_API void speech_log_set(speech_log_callback callback, void* user);

/* ---- devices ---- */

typedef enum speech_device_kind {
  SPEECH_DEVICE_CPU = 0,
  SPEECH_DEVICE_GPU = 1,
  SPEECH_DEVICE_IGPU = 2
} speech_device_kind;

SPEECH_API size_t speech_device_count(void);
SPEECH_API const char* speech_device_name(size_t index);        /* "cpu"; NULL past the end */
SPEECH_API const char* speech_device_description(size_t index); /* processor, instruction set */
SPEECH_API speech_status speech_device_get_kind(size_t index, speech_device_kind* kind);
/* Bytes; `available` is what could be used now. Either pointer may be NULL. */
SPEECH_API speech_status speech_device_memory(size_t index, uint64_t* total, uint64_t* available);

/* ---- the vocabulary of request options ---- */

/* Numbers of options; they are never reused. speech_option_name() gives the names. */
typedef int speech_option;

#define SPEECH_OPT_LANGUAGE 1
#define SPEECH_OPT_SEED 2
#define SPEECH_OPT_TIMESTAMPS 8
#define SPEECH_OPT_PROMPT 9
#define SPEECH_OPT_DECODING 10
#define SPEECH_OPT_THRESHOLD 39
#define SPEECH_OPT_MIN_SPEECH_DURATION_MS 40
#define SPEECH_OPT_MIN_SILENCE_DURATION_MS 41
#define SPEECH_OPT_SPEECH_PAD_MS 42
#define SPEECH_OPT_MAX_SPEECH_DURATION_S 43

typedef enum speech_value_type {
  SPEECH_TYPE_STRING = 0,
  SPEECH_TYPE_INT = 1,
  SPEECH_TYPE_FLOAT = 2,
  SPEECH_TYPE_BOOL = 3
} speech_value_type;

SPEECH_API int speech_option_count(void);                        /* options are 0 .. count - 1 */
SPEECH_API const char* speech_option_name(speech_option option); /* NULL if there is none */
SPEECH_API speech_status speech_option_from_name(const char* name, speech_option* option);
SPEECH_API speech_status speech_option_type(speech_option option, speech_value_type* type);

/* ---- model information: reads metadata only, no weights, no device ---- */

typedef struct speech_model_info speech_model_info;

typedef enum speech_task {
  SPEECH_TASK_SYNTHESIS = 0,
  SPEECH_TASK_RECOGNITION = 1,
  SPEECH_TASK_DETECTION = 2,
  SPEECH_TASK_LANGUAGE = 3
} speech_task;

SPEECH_API const char* speech_task_name(speech_task task); /* "recognition" */

SPEECH_API speech_status speech_model_info_open(const char* path, speech_model_info** info);
SPEECH_API void speech_model_info_free(speech_model_info* info); /* not for a model's own */

/* Strings are empty where the file has none. */
SPEECH_API const char* speech_model_info_name(const speech_model_info* info);
SPEECH_API const char* speech_model_info_organization(const speech_model_info* info);
SPEECH_API const char* speech_model_info_basename(const speech_model_info* info);
SPEECH_API const char* speech_model_info_size_label(const speech_model_info* info);
SPEECH_API const char* speech_model_info_finetune(const speech_model_info* info);
SPEECH_API const char* speech_model_info_version(const speech_model_info* info);
SPEECH_API const char* speech_model_info_license(const speech_model_info* info);
/* Either pointer may be NULL. */
SPEECH_API void speech_model_info_source(const speech_model_info* info, const char** repository,
                                         const char** revision);
/* What most bytes of the weights are: "Q8_0", "BF16"; MLX's formats: "int4-g64". */
SPEECH_API const char* speech_model_info_weight_type(const speech_model_info* info);
SPEECH_API const char* speech_model_info_architecture(const speech_model_info* info);
SPEECH_API int speech_model_info_layout(const speech_model_info* info); /* 0: not numbered */
SPEECH_API speech_task speech_model_info_task(const speech_model_info* info);
SPEECH_API int speech_model_info_sample_rate(const speech_model_info* info); /* Hz; 0: no audio */
SPEECH_API size_t speech_model_info_language_count(const speech_model_info* info);
SPEECH_API const char* speech_model_info_language(const speech_model_info* info, size_t index);
/* The options this model takes, in the model's order. The functions below return 0 or NULL for an
 * option that it does not take. */
SPEECH_API size_t speech_model_info_option_count(const speech_model_info* info);
SPEECH_API speech_option speech_model_info_option(const speech_model_info* info, size_t index);
SPEECH_API int speech_model_info_takes(const speech_model_info* info, speech_option option);
SPEECH_API int speech_model_info_option_required(const speech_model_info* info,
                                                 speech_option option);
/* 1: the value changes the result; 0: it is only checked. */
SPEECH_API int speech_model_info_option_steers(const speech_model_info* info, speech_option option);
SPEECH_API int speech_model_info_option_has_default(const speech_model_info* info,
                                                    speech_option option);
SPEECH_API const char* speech_model_info_option_default_string(const speech_model_info* info,
                                                               speech_option option);
SPEECH_API int64_t speech_model_info_option_default_int(const speech_model_info* info,
                                                        speech_option option);
SPEECH_API double speech_model_info_option_default_float(const speech_model_info* info,
                                                         speech_option option);
SPEECH_API int speech_model_info_option_default_bool(const speech_model_info* info,
                                                     speech_option option);
/* 1 if there is a bound; a missing one is -inf or inf. Pointers may be NULL. */
SPEECH_API int speech_model_info_option_range(const speech_model_info* info, speech_option option,
                                              double* minimum, double* maximum,
                                              int* minimum_exclusive);
SPEECH_API size_t speech_model_info_option_choice_count(const speech_model_info* info,
                                                        speech_option option);
SPEECH_API const char* speech_model_info_option_choice(const speech_model_info* info,
                                                       speech_option option, size_t index);
SPEECH_API uint64_t speech_model_info_file_bytes(const speech_model_info* info);
SPEECH_API uint64_t speech_model_info_weight_bytes(const speech_model_info* info);
/* Of a loaded model: "cpu" and its threads; else NULL and 0. */
SPEECH_API const char* speech_model_info_device(const speech_model_info* info);
SPEECH_API int speech_model_info_threads(const speech_model_info* info);
/* Everything above as one JSON object. */
SPEECH_API const char* speech_model_info_json(const speech_model_info* info);

/* What a file or folder of any format this library reads holds (GGUF, safetensors, torch archives,
 * .nemo, ONNX, npy), as a JSON object {"file", "format", "tensor_count", "parameters",
 * "tensor_bytes", "identity", "tensors": [{"name", "type", "shape", "bytes"}]} and, with `metadata`
 * 1, "meta"; shapes have the outermost axis first. The text is for people: long values are
 * shortened. */
typedef struct speech_file_info speech_file_info;
SPEECH_API speech_status speech_file_info_open(const char* path, int metadata,
                                               speech_file_info** info);
SPEECH_API const char* speech_file_info_json(const speech_file_info* info);
SPEECH_API const char* speech_file_info_text(const speech_file_info* info);
SPEECH_API void speech_file_info_free(speech_file_info* info);

/* ---- models ---- */

typedef struct speech_load_params speech_load_params;
typedef struct speech_model speech_model;

SPEECH_API speech_load_params* speech_load_params_new(void); /* NULL: out of memory */
SPEECH_API void speech_load_params_free(speech_load_params* params);
/* "auto" (the default: the first GPU, else the CPU), "gpu", "cpu" or a device's name in any letter
 * case. A device that is missing is SPEECH_DEVICE when the model is loaded, never replaced. */
SPEECH_API speech_status speech_load_params_set_device(speech_load_params* params,
                                                       const char* device);
/* CPU threads, 1 or more; default: the number of physical performance cores. */
SPEECH_API speech_status speech_load_params_set_threads(speech_load_params* params, int threads);
/* 1: products with quantized weights in f32, many times slower; to compare a model with its
 * official code. Default: activations of 14 to 15 bits, 3e-5 relative from f32. */
SPEECH_API speech_status speech_load_params_set_exact(speech_load_params* params, int exact);
/* 1: the load runs a second of silence, so that the first request is as fast as the next. */
SPEECH_API speech_status speech_load_params_set_warmup(speech_load_params* params, int warmup);

/* Loads a model file (or a checkpoint folder that its family runs as it is). `params` may be NULL.
 * Weights are mapped, not copied: the file must stay as it is while the model lives. */
SPEECH_API speech_status speech_model_load(const char* path, const speech_load_params* params,
                                           speech_model** model);
SPEECH_API void speech_model_free(speech_model* model);
/* Belongs to the model. */
SPEECH_API speech_status speech_model_get_info(const speech_model* model,
                                               const speech_model_info** info);

/* ---- requests ---- */

typedef struct speech_request speech_request;
typedef struct speech_result speech_result;
typedef struct speech_trace speech_trace;

SPEECH_API speech_status speech_request_new(speech_model* model, speech_request** request);
SPEECH_API void speech_request_free(speech_request* request);

/* Copies `count` samples (1 or more, none beyond +-1e15) at `rate` Hz. */
SPEECH_API speech_status speech_request_set_audio(speech_request* request, const float* samples,
                                                  size_t count, int rate);
/* Values are checked when set; one that is refused leaves the request as it was. An option that the
 * model does not take is accepted at the value that means nothing (language "auto", timestamps
 * false, prompt ""). */
SPEECH_API speech_status speech_request_set_string(speech_request* request, speech_option option,
                                                   const char* value);
SPEECH_API speech_status speech_request_set_int(speech_request* request, speech_option option,
                                                int64_t value);
SPEECH_API speech_status speech_request_set_float(speech_request* request, speech_option option,
                                                  double value);
SPEECH_API speech_status speech_request_set_bool(speech_request* request, speech_option option,
                                                 int value);

/* `done` rises from 0 to 1. A result other than 0 stops the request: SPEECH_CANCELLED. */
typedef int (*speech_progress_callback)(double done, void* user);
SPEECH_API speech_status speech_request_set_progress(speech_request* request,
                                                     speech_progress_callback callback, void* user);
/* Stops the request, from any thread, at its next step; a request that has not begun yet does not
 * begin. */
SPEECH_API void speech_request_cancel(speech_request* request);

/* Each runs a request to its end. The whole request (required options, audio) is checked before any
 * work; one that is refused can be mended and run again, one that began its work runs once.
 * Another task's model: SPEECH_UNSUPPORTED. */
SPEECH_API speech_status speech_transcribe(speech_request* request);
/* The regions of speech are the result's segments, without text. */
SPEECH_API speech_status speech_detect(speech_request* request);
/* Several requests of one model at once: the same results as one by one, in less time. Cancelling
 * one, or a callback of one, stops them all. On an error none has a result. */
SPEECH_API speech_status speech_transcribe_batch(speech_request* const* requests, size_t count);
/* Transcribes each region of speech alone and joins the texts; for long audio. `detection` is a
 * request of a detection model without audio; options not set on it are threshold 0.5,
 * min_silence_duration_ms 500, speech_pad_ms 300, max_speech_duration_s 10, else the model's own.
 * Audio without speech gives an empty text. */
SPEECH_API speech_status speech_transcribe_regions(speech_request* request,
                                                   const speech_request* detection);

/* The result of a request that ran, or NULL. Belongs to the request. */
SPEECH_API const speech_result* speech_request_result(const speech_request* request);

/* ---- results ---- */

typedef enum speech_stop {
  SPEECH_STOP_COMPLETE = 0,
  SPEECH_STOP_MAX_SECONDS = 1,
  SPEECH_STOP_MODEL_LIMIT = 2, /* the model makes no more; the text so far is there */
  SPEECH_STOP_CANCELLED = 3
} speech_stop;

SPEECH_API const char* speech_stop_name(speech_stop stop); /* "complete" */

SPEECH_API speech_stop speech_result_stop(const speech_result* result);
SPEECH_API const char* speech_result_text(const speech_result* result); /* NULL: a detection */
/* Segments, words and tokens of a transcript are there when the timestamps option was true.
 * Pointers for what is not wanted may be NULL. */
SPEECH_API size_t speech_result_segment_count(const speech_result* result);
SPEECH_API speech_status speech_result_segment(const speech_result* result, size_t index,
                                               double* start, double* end, const char** text);
SPEECH_API size_t speech_result_word_count(const speech_result* result);
SPEECH_API speech_status speech_result_word(const speech_result* result, size_t index,
                                            double* start, double* end, const char** text);
SPEECH_API size_t speech_result_token_count(const speech_result* result);
SPEECH_API speech_status speech_result_token(const speech_result* result, size_t index,
                                             double* start, double* end, const char** text);
/* Languages the model heard, where it names them. */
SPEECH_API size_t speech_result_language_count(const speech_result* result);
SPEECH_API const char* speech_result_language(const speech_result* result, size_t index);

/* ---- detection of audio that comes in pieces ---- */

typedef struct speech_detection speech_detection;

/* Options are copied from `request`, which must have no audio. Once ended, the regions are exactly
 * those that speech_detect() gives for the whole, however it was cut. */
SPEECH_API speech_status speech_detection_start(const speech_request* request, int rate,
                                                speech_detection** detection);
SPEECH_API speech_status speech_detection_push(speech_detection* detection, const float* samples,
                                               size_t count);
SPEECH_API speech_status speech_detection_end(speech_detection* detection);
/* Regions given so far: the number never shrinks and a region given never changes. */
SPEECH_API size_t speech_detection_region_count(const speech_detection* detection);
SPEECH_API speech_status speech_detection_region(const speech_detection* detection, size_t index,
                                                 double* start, double* end);
/* 1 if a region has begun and is not given yet, with its start; `kept` is 1 when it is certain to
 * be given. Pointers may be NULL. */
SPEECH_API int speech_detection_speaking(const speech_detection* detection, double* start,
                                         int* kept);
SPEECH_API void speech_detection_free(speech_detection* detection);

/* ---- live transcription ---- */

/* Audio in, events out: utterances are the regions of a detection, as in
 * speech_transcribe_regions(). Recognition runs on a thread of the object. Push and end from one
 * thread; take events from one thread, the same or another. */
typedef struct speech_live speech_live;
typedef struct speech_live_event speech_live_event;

typedef enum speech_live_kind {
  SPEECH_LIVE_STARTED = 0,   /* speech that will be an utterance; time: its start */
  SPEECH_LIVE_DELTA = 1,     /* more text of an utterance under way; never taken back */
  SPEECH_LIVE_STOPPED = 2,   /* its end is known; time: its end */
  SPEECH_LIVE_COMPLETED = 3, /* the whole text, which replaces the deltas; time: its length */
  SPEECH_LIVE_FAILED = 4     /* its recognition failed; text: the message */
} speech_live_kind;

/* Takes the options of both requests, which have no audio. `partial` 0: no deltas. */
SPEECH_API speech_status speech_live_start(const speech_request* recognition,
                                           const speech_request* detection, int rate, int partial,
                                           speech_live** live);
/* SPEECH_OUT_OF_MEMORY, and nothing is taken, when more than 13.1 million samples would wait. */
SPEECH_API speech_status speech_live_push(speech_live* live, const float* samples, size_t count);
/* Samples that are held and not recognized yet. */
SPEECH_API size_t speech_live_waiting(const speech_live* live);
/* No more audio; the last utterances follow as events. */
SPEECH_API speech_status speech_live_end(speech_live* live);
/* The next event, waiting for it up to `timeout_ms` (-1: without limit). *event is NULL when the
 * time is over, or, with *finished 1, when all was ended and recognized. Free the event. */
SPEECH_API speech_status speech_live_next(speech_live* live, int timeout_ms,
                                          speech_live_event** event, int* finished);
/* Cancels what is running. */
SPEECH_API void speech_live_free(speech_live* live);

SPEECH_API speech_live_kind speech_live_event_kind(const speech_live_event* event);
SPEECH_API int64_t
speech_live_event_item(const speech_live_event* event);                   /* utterance: 0, 1, ... */
SPEECH_API double speech_live_event_time(const speech_live_event* event); /* seconds */
SPEECH_API const char* speech_live_event_text(const speech_live_event* event);
SPEECH_API speech_status speech_live_event_status(const speech_live_event* event); /* of FAILED */
/* Of COMPLETED, else NULL; times count from the first sample pushed. */
SPEECH_API const speech_result* speech_live_event_result(const speech_live_event* event);
SPEECH_API void speech_live_event_free(speech_live_event* event);

/* ---- audio files ---- */

/* Reads a recording piece by piece: WAVE, FLAC, Ogg, MP3 and what else the build supports. Channels
 * are averaged; samples come at the file's own rate. */
typedef struct speech_audio speech_audio;

SPEECH_API speech_status speech_audio_open(const char* path, speech_audio** audio);
SPEECH_API int speech_audio_rate(const speech_audio* audio); /* Hz */
/* Samples there will be, or -1 where the file does not say; a hint. */
SPEECH_API int64_t speech_audio_length(const speech_audio* audio);
/* Up to `count` samples; *read is 0 at the end. */
SPEECH_API speech_status speech_audio_read(speech_audio* audio, float* samples, size_t count,
                                           size_t* read);
SPEECH_API void speech_audio_free(speech_audio* audio);

/* ---- making model files ---- */

/* Both write a file that appears under its name whole or not at all; `params` and `progress` may be
 * NULL. With a `plan` that is not NULL nothing is written: it gets the path, size and tensors
 * that the file would have. */

typedef struct speech_quantize_params speech_quantize_params;
SPEECH_API speech_quantize_params* speech_quantize_params_new(void); /* NULL: out of memory */
SPEECH_API void speech_quantize_params_free(speech_quantize_params* params);
/* A file of importance weights for the K types: per tensor one weight per column. */
SPEECH_API speech_status speech_quantize_params_set_importance(speech_quantize_params* params,
                                                               const char* path);
/* An input like those the model will get: an audio file for a recognition model, a text file for
 * a language model. speech_quantize() runs the F32 model on all that were added and chooses codes
 * for what its matrices are multiplied with; the file stays an ordinary one. Not for "f16", affine
 * folders, or together with importance weights. Errors of it are of the option "calibrate". */
SPEECH_API speech_status speech_quantize_params_add_calibration(speech_quantize_params* params,
                                                                const char* path);
SPEECH_API speech_status speech_quantize_params_set_threads(speech_quantize_params* params,
                                                            int threads);
/* Rewrites an F32 model as "f16", "q8_0", "q6_k", "q5_k" or "q4_k"; all metadata is kept.
 * `out_path` is a file, or a folder that gets one of the canonical name. */
SPEECH_API speech_status speech_quantize(const char* model_path, const char* type,
                                         const char* out_path, const speech_quantize_params* params,
                                         speech_progress_callback progress, void* user,
                                         speech_file_info** plan);

typedef struct speech_convert_params speech_convert_params;
SPEECH_API speech_convert_params* speech_convert_params_new(void); /* NULL: out of memory */
SPEECH_API void speech_convert_params_free(speech_convert_params* params);
/* general.name of the new file; default: from the source's metadata or its file name. */
SPEECH_API speech_status speech_convert_params_set_name(speech_convert_params* params,
                                                        const char* name);
/* 1: keep heads of the checkpoint that the published layout leaves out. */
SPEECH_API speech_status speech_convert_params_set_extra_heads(speech_convert_params* params,
                                                               int extra_heads);
/* Which model of a source that holds several, by its sample rate in Hz; 0: the first. */
SPEECH_API speech_status speech_convert_params_set_rate(speech_convert_params* params, int rate);
/* Makes a GGUF file (F32) of an official checkpoint. */
SPEECH_API speech_status speech_convert(const char* source_path, const char* out_path,
                                        const speech_convert_params* params,
                                        speech_progress_callback progress, void* user,
                                        speech_file_info** plan);

/* ---- traces ---- */

/* The tensors of every stage of the requests it is set on, for comparison with the official code.
 */
SPEECH_API speech_status speech_trace_new(speech_trace** trace);
/* Names of stages recorded from now on begin with `prefix`. */
SPEECH_API speech_status speech_trace_set_prefix(speech_trace* trace, const char* prefix);
/* Where a family works in chunks: keep the stages of these alone (ascending). Default: its choice.
 */
SPEECH_API speech_status speech_trace_set_chunks(speech_trace* trace, const int64_t* chunks,
                                                 size_t count);
/* Where stages have many channels: keep every step-th. Default: the family's choice. */
SPEECH_API speech_status speech_trace_set_channel_step(speech_trace* trace, int step);
/* NULL takes it away. The trace must outlive the request's run. */
SPEECH_API speech_status speech_request_set_trace(speech_request* request, speech_trace* trace);
SPEECH_API size_t speech_trace_count(const speech_trace* trace); /* stages recorded */
/* Writes a safetensors file. */
SPEECH_API speech_status speech_trace_write(const speech_trace* trace, const char* path);
SPEECH_API void speech_trace_free(speech_trace* trace);

/* ---- language models ---- */

/* A text that the caller owns. */
typedef struct speech_text speech_text;
SPEECH_API const char* speech_text_get(const speech_text* text);
SPEECH_API void speech_text_free(speech_text* text);

/* Quantizes dense matrices while a Hugging Face folder is loaded, by MLX's affine algorithm: bits
 * 2, 3, 4, 5, 6 or 8, a scale and a bias for each group of 32, 64 or 128 columns. */
SPEECH_API speech_status speech_load_params_set_quantization(speech_load_params* params, int bits,
                                                             int group);

/* Adds the LoRA or DoRA adapter in this folder, of mlx-lm or PEFT, to a dense Hugging Face folder
 * while it is loaded. SPEECH_UNSUPPORTED when the model is loaded if its weights are quantized, or
 * are to be: bake the adapter first. */
SPEECH_API speech_status speech_load_params_set_lora(speech_load_params* params,
                                                     const char* folder);

/* How language models keep the keys and values of what they have read: "f32" (the default), or
 * "f16", half the memory. */
SPEECH_API speech_status speech_load_params_set_kv_cache(speech_load_params* params,
                                                         const char* type);

/* Language models: 1 (the default) multiplies matrices where they lie in the mapped file: its pages
 * are shared with other processes and can be dropped when memory is short. 0 copies them into
 * memory while loading, in huge pages, which decoding reads faster. */
SPEECH_API speech_status speech_load_params_set_map_weights(speech_load_params* params, int map);

/* {"ids":[...]} of a text. `parse_special` 0: added tokens such as <|im_end|> are read as text. */
SPEECH_API speech_status speech_tokenize(speech_model* model, const char* text, int parse_special,
                                         speech_text** json);
/* The text of ids; invalid UTF-8 becomes U+FFFD. SPEECH_OUT_OF_RANGE names an id that the
 * tokenizer does not have. */
SPEECH_API speech_status speech_detokenize(speech_model* model, const int32_t* ids, size_t count,
                                           speech_text** text);

/* Answers OpenAI's completion requests. Requests of several threads are computed in one batch. */
typedef struct speech_completions speech_completions;
typedef struct speech_completions_params speech_completions_params;

SPEECH_API speech_completions_params* speech_completions_params_new(void); /* NULL: no memory */
SPEECH_API void speech_completions_params_free(speech_completions_params* params);
/* The model's name in answers; default: that of its information. */
SPEECH_API speech_status speech_completions_params_set_name(speech_completions_params* params,
                                                            const char* name);
/* Sequences that are computed together (default 8), and how many may wait (default 64) before
 * requests are refused with SPEECH_BUSY. */
SPEECH_API speech_status speech_completions_params_set_limits(speech_completions_params* params,
                                                              int sequences, int queue);
/* Keeps keys and values of prompts in this folder from run to run. */
SPEECH_API speech_status speech_completions_params_set_cache(speech_completions_params* params,
                                                             const char* folder);
/* A JSON schema or a GBNF grammar for requests that bring no constraint. */
SPEECH_API speech_status speech_completions_params_set_grammar(speech_completions_params* params,
                                                               const char* grammar);

/* The model must outlive it. `params` may be NULL. */
SPEECH_API speech_status speech_completions_new(speech_model* model,
                                                const speech_completions_params* params,
                                                speech_completions** completions);
/* Cancels what is running; no call on it may be under way. */
SPEECH_API void speech_completions_free(speech_completions* completions);

typedef enum speech_completion_kind {
  SPEECH_COMPLETION_CHAT = 0, /* POST /v1/chat/completions */
  SPEECH_COMPLETION_TEXT = 1  /* POST /v1/completions */
} speech_completion_kind;

/* One chunk of a streamed answer as JSON; nonzero cancels. */
typedef int (*speech_chunk_callback)(const char* json, void* user);
/* Asked a few times a second while an answer is made; nonzero cancels. */
typedef int (*speech_gone_callback)(void* user);

/* Runs one request, the JSON body of the endpoint, to its end. A request with "stream": true gives
 * its answer through `chunk` and *answer is NULL; any other gives it in *answer. Callbacks run on
 * the calling thread and may be NULL. Any thread, any number at once. Errors name the field in
 * speech_last_error_option(); SPEECH_BUSY when too many requests wait. */
SPEECH_API speech_status speech_complete(speech_completions* completions,
                                         speech_completion_kind kind, const char* request,
                                         speech_chunk_callback chunk, speech_gone_callback gone,
                                         void* user, speech_text** answer);
/* {"text":...,"ids":[...]}: the prompt that a chat request becomes. */
SPEECH_API speech_status speech_chat_prompt(speech_completions* completions, const char* request,
                                            speech_text** json);
/* Numbers since the start: {"requests":...,"generated_tokens":...,"waiting":...}. */
SPEECH_API speech_status speech_completions_counts(const speech_completions* completions,
                                                   speech_text** json);

/* Asks the fixtures of a folder and checks the answers, then measures speed and memory; nothing
 * else may run on `completions` meanwhile. `request`: a JSON object of fields for every fixture's
 * chat request, or NULL. *report:
 * {"model":...,"weights":...,"passed":...,"scored":...,"accuracy":...,
 * "disk_bytes":...,"resident_bytes":...,"first_word_ms":...,"tokens_per_second":...,"score":...,
 * "fixtures_sha256":...,"fixtures":[{"name","passed","failures","finish_reason","answer"}]}. */
SPEECH_API speech_status speech_evaluate(speech_completions* completions, const char* fixtures,
                                         const char* request, speech_progress_callback progress,
                                         void* user, speech_text** report);
/* Holds one report against another: *verdict is {"passed":...,"reasons":[...],
 * "accuracy_change":(percentage points),"score_ratio":...,"lost":[names],"won":[names]}. It passes
 * when at most `max_loss` points of accuracy are lost and, with `min_score_ratio` above 0, the
 * score is at least so many times the baseline's. */
SPEECH_API speech_status speech_compare_evaluations(const char* baseline, const char* candidate,
                                                    double max_loss, double min_score_ratio,
                                                    speech_text** verdict);

/* Records the stages of one pass over `ids`. */
SPEECH_API speech_status speech_trace_ids(speech_trace* trace, speech_model* model,
                                          const int32_t* ids, size_t count);

/* Writes a copy of the Hugging Face folder `base` with a LoRA or DoRA adapter of mlx-lm or PEFT
 * added to its matrices. */
SPEECH_API speech_status speech_lora_bake(const char* base, const char* adapter,
                                          const char* out_path, speech_progress_callback progress,
                                          void* user);

/* ---- profiles ---- */

/* What a whole model does with its time and memory. Recognition and detection run on audio,
 * language models on random ids: a prompt in one pass, then tokens one by one, then those of
 * several sequences at once. */
typedef struct speech_profile_params speech_profile_params;
SPEECH_API speech_profile_params* speech_profile_params_new(void); /* NULL: out of memory */
SPEECH_API void speech_profile_params_free(speech_profile_params* params);
/* Copies `count` samples at `rate` Hz; default: a made-up voice of `seconds`, by default 30. */
SPEECH_API speech_status speech_profile_params_set_audio(speech_profile_params* params,
                                                         const float* samples, size_t count,
                                                         int rate);
SPEECH_API speech_status speech_profile_params_set_seconds(speech_profile_params* params,
                                                           double seconds);
/* Default: 512, 64 and 4; sequences 1 leaves the third work out. */
SPEECH_API speech_status speech_profile_params_set_tokens(speech_profile_params* params, int prompt,
                                                          int tokens, int sequences);
/* Runs of each work, of which the fastest counts, after one that does not; default 3. */
SPEECH_API speech_status speech_profile_params_set_runs(speech_profile_params* params, int runs);
/* Loads the model and measures it; both params may be NULL. Values are checked here. The object
 * that *json gets is described in docs/cli.md. */
SPEECH_API speech_status speech_profile(const char* path, const speech_load_params* load_params,
                                        const speech_profile_params* params, speech_text** json);

#ifdef __cplusplus
}
#endif

#endif /* SPEECH_H */
