"""Programs that the builder runs inside an image. They are copied there: each stands alone, with what the image has."""
