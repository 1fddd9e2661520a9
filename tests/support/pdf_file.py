"""Small PDFs, written byte by byte."""

from __future__ import annotations

import zlib


def pdf(*pages: str | bytes) -> bytes:
    """A PDF with these pages: a line of text each, or the bytes of a compressed content stream."""
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for i, page in enumerate(pages):
        content = _line(page) if isinstance(page, str) else page
        resources = "/Resources << /Font << /F1 3 0 R >> >>"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R {resources} /MediaBox [0 0 300 300]"
            f" /Contents {5 + 2 * i} 0 R >>".encode()
        )
        head = f"<< /Length {len(content)} /Filter /FlateDecode >>".encode()
        objects.append(head + b"\nstream\n" + content + b"\nendstream")
    return _file(objects)


def _line(text: str) -> bytes:
    return zlib.compress(f"BT /F1 12 Tf 20 200 Td ({text}) Tj ET".encode())


def _file(objects: list[bytes]) -> bytes:
    out, places = b"%PDF-1.4\n", []
    for i, body in enumerate(objects):
        places.append(len(out))
        out += b"%d 0 obj\n%b\nendobj\n" % (i + 1, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    count = len(objects) + 1
    tail = b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (count, len(out))
    return out + b"xref\n0 %d\n0000000000 65535 f \n" % count + table + tail
