"""Programs that run inside images, with the Python of the image; they import nothing of ctrain."""
