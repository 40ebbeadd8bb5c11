// FastConformer recognizers: parakeet-tdt-0.6b-v3, parakeet-tdt_ctc-0.6b-ja, reazonspeech-nemo-v2.
#pragma once

#include "models/registry.h"

namespace speech {

extern const Family fastconformer_family;

}  // namespace speech
