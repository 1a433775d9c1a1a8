"""Long values, cut so that PostgreSQL can store them without gaps.

What does not fit into its row is kept apart (TOAST), in chunks of 1,996 bytes, four to a page of 8 KiB. A shorter last
chunk takes a place among them and leaves up to a quarter of the page empty, because the next whole one does not fit: a
text of 4 KiB that cannot be compressed cost a third more. So a long text is stored as whole chunks and a tail, and the
tail stays in the row. What can be compressed is, each part on its own.
"""

from __future__ import annotations

CHUNK = 1996
"""``TOAST_MAX_CHUNK_SIZE`` of a server with pages of 8 KiB; with others the texts are stored just as exactly."""


def in_chunks(text: str) -> tuple[str, str | None]:
    """The text as whole chunks and the rest, which is None if the text is shorter than a chunk or nothing is left.

    No character is cut in two, so the chunks of a text that is not ASCII may be up to three bytes short of whole.
    """
    if len(text) * 4 < CHUNK:
        return text, None
    data = text.encode()
    end = len(data) - len(data) % CHUNK
    if end in (0, len(data)):
        return text, None
    while data[end] & 0xC0 == 0x80:  # inside a character
        end -= 1
    return data[:end].decode(), data[end:].decode()
