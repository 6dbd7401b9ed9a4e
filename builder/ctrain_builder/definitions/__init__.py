"""What an image is: .def files, images.yaml, bases, parents, and what images had when they were built."""
