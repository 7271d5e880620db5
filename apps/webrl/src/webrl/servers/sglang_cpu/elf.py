"""Reads the undefined symbols of a shared library, and writes a library that defines some.

Invariant: the written library holds functions alone, and each returns `CUDA_ERROR_NO_DEVICE`.

The format is that of the ELF-64 specification; only what the dynamic loader reads is written, so no
compiler is needed.
"""

from __future__ import annotations

import mmap
import platform
import struct
from collections.abc import Sequence
from pathlib import Path

from webrl.errors import ServerStartError

_FILE_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<qQ")
_WORD = struct.Struct("<I")

_IDENTITY = b"\x7fELF\x02\x01\x01"
_SHARED_OBJECT = 3
_DYNSYM = 11
_LOAD, _DYNAMIC_SEGMENT, _STACK = 1, 2, 0x6474E551
_READ_EXECUTE, _READ_WRITE = 5, 6
_HASH, _STRTAB, _SYMTAB, _STRSZ, _SYMENT, _SONAME = 4, 5, 6, 10, 11, 14
_GLOBAL_FUNCTION = 0x12
_PAGE = 1 << 16
"""Largest page of the machines below."""

_RETURN_NO_DEVICE = {
    "x86_64": (62, bytes.fromhex("b864000000c3")),
    "aarch64": (183, bytes.fromhex("800c8052c0035fd6")),
}
"""Machine number, and the code of `return 100;`."""


def undefined_symbols(path: Path) -> list[str]:
    """Return the names that the dynamic symbol table of a 64-bit library leaves undefined."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        header = _FILE_HEADER.unpack_from(data)
        offset, size, count = header[6], header[11], header[12]
        sections = [_SECTION.unpack_from(data, offset + i * size) for i in range(count)]
        names: list[str] = []
        for section in sections:
            if section[1] != _DYNSYM:
                continue
            strings = sections[section[6]][4]
            table = data[section[4] : section[4] + section[5]]
            for name, _, _, home, _, _ in _SYMBOL.iter_unpack(table):
                if name and home == 0:
                    end = data.find(b"\0", strings + name)
                    names.append(data[strings + name : end].decode())
        return names


def shared_library(soname: str, symbols: Sequence[str]) -> bytes:
    """Return a shared library for this machine that defines `symbols`.

    Args:
        soname: Name that the loader knows it by.
        symbols: Functions; each returns `CUDA_ERROR_NO_DEVICE`.

    Raises:
        ServerStartError: The machine is of another kind than those known here.
    """
    try:
        machine, code = _RETURN_NO_DEVICE[platform.machine()]
    except KeyError as error:
        raise ServerStartError(
            f"machine must be one of {', '.join(_RETURN_NO_DEVICE)}, got {platform.machine()!r}. "
            "Use the embedded backend here."
        ) from error
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in (soname, *symbols))
    code_at = _FILE_HEADER.size + 4 * _SEGMENT.size
    symbols_at = code_at + 16
    entries = [_SYMBOL.pack(0, 0, 0, 0, 0, 0)]
    position = 1 + len(soname) + 1
    for name in symbols:
        entries.append(_SYMBOL.pack(position, _GLOBAL_FUNCTION, 0, 1, code_at, len(code)))
        position += len(name) + 1
    # One bucket whose chain names every symbol: the simplest hash table that the loader accepts.
    chain = [0, *range(2, len(symbols) + 1), 0]
    words = [1, len(entries), min(1, len(symbols)), *chain[: len(entries)]]
    table, hashes = b"".join(entries), b"".join(map(_WORD.pack, words))
    hashes_at = symbols_at + len(table)
    strings_at = hashes_at + len(hashes)
    end = strings_at + len(strings)
    dynamic = {
        _HASH: hashes_at,
        _STRTAB: strings_at,
        _SYMTAB: symbols_at,
        _STRSZ: len(strings),
        _SYMENT: _SYMBOL.size,
        _SONAME: 1,
        0: 0,
    }
    tail = b"".join(_DYNAMIC.pack(*entry) for entry in dynamic.items())
    # The loader writes to the dynamic section: it gets a page of its own.
    dynamic_at = -(-end // _PAGE) * _PAGE
    segments = [
        (_LOAD, _READ_EXECUTE, 0, 0, 0, end, end, _PAGE),
        (_LOAD, _READ_WRITE, *[dynamic_at] * 3, *[len(tail)] * 2, _PAGE),
        (_DYNAMIC_SEGMENT, _READ_WRITE, *[dynamic_at] * 3, *[len(tail)] * 2, 8),
        (_STACK, _READ_WRITE, 0, 0, 0, 0, 0, 16),
    ]
    head = _FILE_HEADER.pack(
        _IDENTITY, _SHARED_OBJECT, machine, 1, 0, _FILE_HEADER.size, 0, 0,
        _FILE_HEADER.size, _SEGMENT.size, len(segments), 0, 0, 0,
    )  # fmt: skip
    body = head + b"".join(_SEGMENT.pack(*segment) for segment in segments)
    body += code.ljust(16, b"\0") + table + hashes + strings
    return body.ljust(dynamic_at, b"\0") + tail
