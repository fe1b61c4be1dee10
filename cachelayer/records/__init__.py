"""What an element is, and its bytes: element specs, the codec, media, and numbers that name records.

Nothing here opens a file.
"""
