"""JSON as text that is still being written: read while it arrives, and written while its values arrive."""

from __future__ import annotations

from callstream.jsontext.path import Path, format_path, parse_path
from callstream.jsontext.stream import Change, JsonStream
from callstream.jsontext.writer import JsonWriter

__all__ = ["Change", "JsonStream", "JsonWriter", "Path", "format_path", "parse_path"]
