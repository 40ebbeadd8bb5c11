// libspeech.so: the C API of src/api, linked whole from the static library.
