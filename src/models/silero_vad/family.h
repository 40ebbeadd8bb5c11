// Silero VAD in the registry.
#pragma once

#include "models/registry.h"

namespace speech {

extern const Family silero_vad_family;

}  // namespace speech
