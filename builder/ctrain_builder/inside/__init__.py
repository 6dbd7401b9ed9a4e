"""Programs that the builder runs inside an image. The directory is mounted there: they use what the image has and each
other, with Python from 3.8 on, and nothing else of ctrain."""
