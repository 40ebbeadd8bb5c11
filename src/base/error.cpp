#include "base/error.h"

namespace speech {

const char* status_name(Status status) {
  switch (status) {
    case Status::ok:
      return "ok";
    case Status::cancelled:
      return "cancelled";
    case Status::invalid_argument:
      return "invalid_argument";
    case Status::unsupported:
      return "unsupported";
    case Status::out_of_range:
      return "out_of_range";
    case Status::model_file:
      return "model_file";
    case Status::device:
      return "device";
    case Status::out_of_memory:
      return "out_of_memory";
    case Status::io:
      return "io";
    case Status::internal:
      return "internal";
    case Status::busy:
      return "busy";
  }
  return "internal";
}

}  // namespace speech
