#include "models/fastconformer/family.h"

#include "models/fastconformer/config.h"
#include "models/fastconformer/convert.h"
#include "models/fastconformer/layout.h"
#include "models/fastconformer/recognizer.h"

namespace speech {

const Family fastconformer_family = {
    .architecture = fastconformer::kArchitecture,
    .read_info = fastconformer::read_info,
    .load = fastconformer::load,
    .storage = fastconformer::storage_class,
    .recognizes = fastconformer::recognizes,
    .convert = fastconformer::convert,
    .takes_extra_heads = true,
    .requires_for_q8_0 = "0.8.0",
};

}  // namespace speech
