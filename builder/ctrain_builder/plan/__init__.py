"""The layers that an image needs: their keys, which of them exist, and why the others do not."""
