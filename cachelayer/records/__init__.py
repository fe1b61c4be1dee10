"""Elements and their bytes: element specs, the codec, media, and record numbers. Nothing here opens a file."""
