build:
	cmake --preset release && cmake --build --preset release
